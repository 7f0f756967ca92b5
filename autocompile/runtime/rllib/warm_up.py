"""Compiles an RLModule's phase before its first real call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._dynamo.utils import counters

from autocompile.runtime.rllib.observations import made_up_batch
from autocompile.settings.phases import FORWARD_EXPLORATION

__all__ = ["warm_up"]


def warm_up(
    module: Any,
    phase: str,
    count: int,
    connectors: Callable[[], Any] = lambda: None,
) -> dict[str, Any]:
    """Call exploration or inference with generated observations; keeps the random state.

    If that fails, the phase compiles at its first real call. ``count`` is the number of
    environments; ``connectors`` returns the runner's, None for RLlib's own.

    Returns:
        ``warmup_s`` and ``from_cache``; or ``not_warmed_up`` with the error.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    numbers = np.random.get_state()
    began, hits = time.monotonic(), _cache_hits()
    try:
        # This device only: forking the others' generators would initialize CUDA on each.
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            batch = made_up_batch(module, count, connectors())
            batch = torch.utils._pytree.tree_map(lambda t: t.to(device), batch)
            for steps in (2, 3):  # exploration gets the steps so far: one more is no new graph
                given = {"t": steps} if phase == FORWARD_EXPLORATION else {}
                getattr(module, phase)(batch, **given)
    except Exception as error:  # the generated observations do not fit the module
        return {"not_warmed_up": f"{type(error).__name__}: {error}".partition("\n")[0]}
    finally:
        np.random.set_state(numbers)
    seconds = round(time.monotonic() - began, 3)
    return {"warmup_s": seconds, "from_cache": _cache_hits() > hits}


def _cache_hits() -> int:
    return int(
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )
