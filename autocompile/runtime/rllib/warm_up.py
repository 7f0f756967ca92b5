"""Compile an RLModule's phase before its first real call, one process of a machine at a time."""

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

_WAIT_S = 60.0  # for another process that compiles the same


def warm_up(
    module: Any,
    phase: str,
    count: int,
    config: CompileConfig,
    connectors: Callable[[], Any] = lambda: None,
) -> dict[str, Any]:
    """Call a phase with made-up observations; random numbers go on as if nothing had been.

    A phase that cannot be called with them compiles at its first real call.

    Args:
        module: an RLModule.
        phase: of exploration or inference.
        count: of environments.
        config: the setting that the phase uses.
        connectors: gives the runner's, if they are not RLlib's own.

    Returns:
        ``warmup_s``, and whether the code came ``from_cache``; or ``not_warmed_up``, why not.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    numbers = np.random.get_state()
    began, hits = time.monotonic(), _cache_hits()
    try:
        # Of this device only: to look at the others' numbers would start CUDA on each of them.
        devices = [device] if device.type == "cuda" else []
        key = _key(module, phase, count, config)
        with torch.random.fork_rng(devices), _first_of_its_kind(key):
            batch = made_up_batch(module, count, connectors())
            batch = torch.utils._pytree.tree_map(lambda t: t.to(device), batch)
            for steps in (2, 3):  # exploration gets the steps so far: one more is no new graph
                given = {"t": steps} if phase == FORWARD_EXPLORATION else {}
                getattr(module, phase)(batch, **given)
    except Exception as error:  # whatever was made up did not fit
        return {"not_warmed_up": f"{type(error).__name__}: {error}".partition("\n")[0]}
    finally:
        np.random.set_state(numbers)
    seconds = round(time.monotonic() - began, 3)
    return {"warmup_s": seconds, "from_cache": _cache_hits() > hits}


def compile_in_one_thread() -> None:
    """Have Inductor start no pool of compiling processes here, unless the environment says so.

    By default each process of a machine would have as many as there are cores.
    """
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        import torch._inductor.config as inductor

        inductor.compile_threads = 1


def _cache_hits() -> int:
    return int(
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )


def _key(module: torch.nn.Module, phase: str, count: int, config: CompileConfig) -> str:
    """The same for processes that compile the same code."""
    weights = [(name, tuple(p.shape), p.dtype) for name, p in module.named_parameters()]
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    text = repr((torch.__version__, kind, weights, phase, count, config))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@contextlib.contextmanager
def _first_of_its_kind(key: str) -> Iterator[None]:
    """The first process on a machine compiles alone; the others find the code in torch's cache."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    done = Path(cache_dir()) / f"autocompile-{key}.done"
    os.makedirs(done.parent, exist_ok=True)
    if done.exists():
        yield
        return
    lock = FileLock(done.with_suffix(".lock"))
    with contextlib.suppress(Timeout):  # the other one hangs: compile beside it
        lock.acquire(timeout=_WAIT_S)
    try:
        yield
        done.touch()
    finally:
        lock.release()
