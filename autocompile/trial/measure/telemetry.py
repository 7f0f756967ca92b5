"""What Dynamo and Inductor have compiled: counters, and the code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autocompile.errors import first_line
from autocompile.protocol.processes import children

_SMALL_S = 2e-4  # of a kernel of one element with nothing beside it, at most
_UNDISTURBED = 20  # such kernels in a row


def synchronizer(device: torch.device) -> Callable[[], None]:
    """A function that waits for the device to finish."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def drain(device: torch.device) -> None:
    """Wait until a GPU has run what processes that were stopped have queued, at most a second.

    Stopping a process stops none of its kernels. While they run, a small one of ours takes longer.
    """
    if device.type != "cuda":
        return
    small, quick, deadline = torch.zeros(1, device=device), 0, time.monotonic() + 1.0
    while quick < _UNDISTURBED and time.monotonic() < deadline:
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        small.add_(1)
        torch.cuda.synchronize(device)
        quick = quick + 1 if time.perf_counter() - began < _SMALL_S else 0


@dataclass(frozen=True)
class DynamoFacts:
    """Dynamo's counts since the last reset, and at most five reasons of each kind.

    ``skipped_frames`` are functions that Dynamo gave up as a whole, for example because of a graph
    break inside a loop, which is not counted as a break.
    """

    graphs: int
    graph_breaks: int
    skipped_frames: int
    recompiles: int
    break_reasons: tuple[str, ...]
    skip_reasons: tuple[str, ...]
    recompile_reasons: tuple[str, ...]
    cudagraph_skips: int


def reset_dynamo(backend: str) -> None:
    """Reset Dynamo and its counters, and make a fallback to eager an error.

    Imports the torch modules that the backend needs, so that compile time excludes imports.
    """
    if backend == "inductor":
        importlib.import_module("torch._inductor.compile_fx")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    # At the recompile limit, and with suppress_errors when a backend fails, torch silently runs
    # eager. It refuses to have both options set.
    torch._dynamo.config.suppress_errors = False
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def compilations() -> int:
    """A number that increases whenever Dynamo compiles something.

    Adds frames and graphs: with ``fullgraph=True`` Dynamo counts no frames, and a frame may produce
    no graph.
    """
    counters = torch._dynamo.utils.counters
    return int(counters["frames"]["total"] + counters["stats"]["unique_graphs"])


def dynamo_facts() -> DynamoFacts:
    """Read Dynamo's counters and compilation metrics."""
    counters = torch._dynamo.utils.counters
    breaks = counters["graph_break"]
    met = {why: n for why, n in counters["unimplemented"].items() if why not in breaks}
    skipped = int(counters["frames"]["total"] - counters["frames"]["ok"])
    reasons = [
        first_line(m.recompile_reason)
        for m in torch._dynamo.utils.get_compilation_metrics()
        if getattr(m, "recompile_reason", None)
    ]
    return DynamoFacts(
        graphs=int(counters["stats"]["unique_graphs"]),
        graph_breaks=sum(breaks.values()),
        skipped_frames=skipped,
        recompiles=len(reasons),
        break_reasons=_most_frequent(breaks),
        # A skipped function does not count as a graph break.
        skip_reasons=_most_frequent(met) if skipped else (),
        recompile_reasons=tuple(reasons[:5]),
        cudagraph_skips=int(counters["inductor"]["cudagraph_skips"]),
    )


def _most_frequent(reasons: Mapping[str, int]) -> tuple[str, ...]:
    ordered = sorted(reasons, key=lambda reason: -reasons[reason])
    return tuple(dict.fromkeys(map(first_line, ordered)))[:5]


def loaded_code() -> dict[Path, str]:
    """File and text of the modules that Inductor has loaded in this process."""
    cache = sys.modules.get("torch._inductor.codecache")
    texts = {}
    for module in list(getattr(getattr(cache, "PyCodeCache", None), "modules", ())):
        file = Path(getattr(module, "__file__", None) or "").resolve()
        with contextlib.suppress(OSError):
            texts[file] = file.read_text("utf-8", "replace")
    return texts


def use_compile_workers(threads: int, device: torch.device) -> None:
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


def end_compile_workers() -> None:
    """End the workers, which take memory and time beside what is timed; a compile starts them."""
    compiling: Any = importlib.import_module("torch._inductor.async_compile")
    for pool in compiling._pool_set:
        process = getattr(pool, "process", None)
        if process is not None and not children(process.pid):
            process.kill()  # it still imports torch, for which a shutdown would wait
            process.wait()
    compiling.shutdown_compile_workers()
