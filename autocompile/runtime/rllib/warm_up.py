"""Compiles an RLModule's phase before its first real call, in one process at a time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch._dynamo.utils import counters

from autocompile.runtime.rllib.observations import made_up_batch
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import FORWARD_EXPLORATION

__all__ = ["compile_in_one_thread", "warm_up"]

_WAIT_S = 60.0  # for another process that compiles the same code


def warm_up(
    module: Any,
    phase: str,
    count: int,
    config: CompileConfig,
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
        key = _key(module, phase, count, config)
        with torch.random.fork_rng(devices), _first_of_its_kind(key):
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


def compile_in_one_thread() -> None:
    """Turn off Inductor's pool of compile workers, unless the environment sets its size.

    By default each process on the machine starts one worker per core.
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        import torch._inductor.config as inductor

        inductor.compile_threads = 1


def _cache_hits() -> int:
    return int(
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )


def _key(module: torch.nn.Module, phase: str, count: int, config: CompileConfig) -> str:
    """Equal for processes that compile the same code."""
    weights = [(name, tuple(p.shape), p.dtype) for name, p in module.named_parameters()]
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    text = repr((torch.__version__, kind, weights, phase, count, config))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@contextlib.contextmanager
def _first_of_its_kind(key: str) -> Iterator[None]:
    """Hold a file lock while the first process compiles; the others then use torch's cache."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    done = Path(cache_dir()) / f"autocompile-{key}.done"
    done.parent.mkdir(parents=True, exist_ok=True)
    if done.exists():
        yield
        return
    lock = FileLock(done.with_suffix(".lock"))
    with contextlib.suppress(Timeout):  # the other process hangs: compile anyway
        lock.acquire(timeout=_WAIT_S)
    try:
        yield
        done.touch()
    finally:
        lock.release()
