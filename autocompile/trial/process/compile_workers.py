"""Inductor's compile workers: as many as a request allows, and none while something is timed."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from autocompile.protocol.processes import children

__all__ = ["end", "use"]


def use(threads: int, device: torch.device) -> None:
    """Compile with so many threads from now on; with one, in this process itself.

    Triton's kernels are compiled in processes, which take seconds to start: they begin now. C++ is
    compiled in threads.
    """
    config: Any = importlib.import_module("torch._inductor.config")
    config.compile_threads = threads
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)  # autotuning reads only this
    if threads > 1 and device.type == "cuda":
        compiling: Any = importlib.import_module("torch._inductor.async_compile")
        compiling.AsyncCompile.use_process_pool()


def end() -> None:
    """End the workers, which take memory and time beside what is timed; a compile starts them."""
    compiling: Any = importlib.import_module("torch._inductor.async_compile")
    for pool in compiling._pool_set:
        process = getattr(pool, "process", None)
        if process is not None and not children(process.pid):
            process.kill()  # it still imports torch, for which a shutdown would wait
            process.wait()
    compiling.shutdown_compile_workers()
