"""What Dynamo and Inductor have compiled, and where graphs break."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autocompile.errors import first_line
from autocompile.protocol.processes import children
from autocompile.store.record import GraphBreak
from autocompile.trial.measure.recompiles import reason_in_words

_SMALL_S = 2e-4  # of a kernel of one element with nothing beside it, at most
_UNDISTURBED = 20  # such kernels in a row
_LONGEST_DRAIN_S = (
    1.0  # then others' work delays what is timed, which other trials show
)

_MOST = 12  # graph breaks in a record
_FEW = 5  # reasons of each kind in it
_LOOKED_AT = 100  # graph breaks that torch has noted
_WIDE = 200  # characters of a text from torch
_SKIP = "skipping cudagraphs due to"
_TORCH, _OURS = Path(torch.__file__).parent, Path(__file__).parents[2]


def drain(device: torch.device) -> None:
    """Wait until a GPU has run what processes that were stopped have queued, at most a second.

    Stopping a process stops none of its kernels. While they run, a small one of ours takes longer.
    """
    if device.type != "cuda":
        return
    small = torch.zeros(1, device=device)
    deadline = time.monotonic() + _LONGEST_DRAIN_S
    quick = 0  # in a row
    while quick < _UNDISTURBED and time.monotonic() < deadline:
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        small.add_(1)
        torch.cuda.synchronize(device)
        took_s = time.perf_counter() - began
        quick = quick + 1 if took_s < _SMALL_S else 0


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


def dynamo_facts() -> dict[str, Any]:
    """Dynamo's counts since the last reset, and at most five reasons of each kind.

    ``skipped_frames`` are functions that Dynamo gave up as a whole, for example because of a graph
    break inside a loop, which is not counted as a break.
    """
    counters = torch._dynamo.utils.counters
    breaks = counters["graph_break"]
    met = {why: n for why, n in counters["unimplemented"].items() if why not in breaks}
    skipped = int(counters["frames"]["total"] - counters["frames"]["ok"])
    reasons = recompile_reasons()
    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "graph_breaks": sum(breaks.values()),
        "recompiles": len(reasons),
        "skipped_frames": skipped,
        "break_reasons": _most_frequent(breaks),
        # A skipped function does not count as a graph break.
        "skip_reasons": _most_frequent(met) if skipped else (),
        "recompile_reasons": reasons[:_FEW],
        "cudagraph_skips": int(counters["inductor"]["cudagraph_skips"]),
    }


def recompile_reasons() -> list[str]:
    """Why Dynamo has compiled anew since the last reset, in plain words."""
    metrics = torch._dynamo.utils.get_compilation_metrics()
    reasons = (getattr(m, "recompile_reason", None) for m in metrics)
    return [reason_in_words(reason) for reason in reasons if reason]


def _most_frequent(reasons: Mapping[str, int]) -> tuple[str, ...]:
    ordered = sorted(reasons, key=lambda reason: -reasons[reason])
    lines = dict.fromkeys(map(first_line, ordered))  # each once, in order
    return tuple(lines)[:_FEW]


def use_compile_workers(threads: int, device: torch.device) -> None:
    """Compile with so many threads from now on; with one, in this process itself.

    Triton's kernels are compiled in processes, which take seconds to start: they begin now. C++ is
    compiled in threads.
    """
    config: Any = importlib.import_module("torch._inductor.config")
    config.compile_threads = threads
    # Autotuning reads only this.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
    if threads > 1 and device.type == "cuda":
        compiling: Any = importlib.import_module("torch._inductor.async_compile")
        compiling.AsyncCompile.use_process_pool()


def end_compile_workers() -> None:
    """End the workers, which take memory and time beside what is timed; a compile starts them."""
    compiling: Any = importlib.import_module("torch._inductor.async_compile")
    for pool in compiling._pool_set:
        process = getattr(pool, "process", None)
        # Without workers it still imports torch, for which a shutdown would wait.
        if process is not None and not children(process.pid):
            _kill_when_waited_for(process)
    compiling.shutdown_compile_workers()


def _kill_when_waited_for(process: Any) -> None:
    # Not before: torch 2.15 watches it, and warns of an end that no shutdown has asked for.
    wait = process.wait

    def kill_and_wait(timeout: float | None = None) -> int:
        process.kill()
        return int(wait(timeout))

    process.wait = kill_and_wait


def breaks_met(home: Path) -> list[GraphBreak]:
    """The graph breaks since the last reset, with their places in the user's folder: a few."""
    reasons = list(getattr(torch._dynamo.utils, "graph_break_reasons", ()))
    rows: dict[tuple[str, str], GraphBreak] = {}
    # Each needs files to be read, and a break in a loop is met many times.
    for reason in reasons[:_LOOKED_AT]:
        row = _break(reason.user_stack, reason.reason, home)
        rows.setdefault((row.place, row.reason), row)
    every = list(rows.values())
    with_code = [row for row in every if row.code]
    return (with_code or every)[:_MOST]


def cudagraph_skip_reasons() -> list[str]:
    """Why Inductor has made no CUDA graphs, in torch's words but for where it found the reason."""
    metrics = torch._dynamo.utils.get_compilation_metrics()
    texts = (getattr(m, "cudagraph_skip_reason", None) for m in metrics)
    reasons: dict[str, None] = {}  # each once, in order
    for text in filter(None, texts):
        reason = text.partition("Found from")[0].replace(_SKIP, "")
        on_one_line = " ".join(reason.split())
        reasons[on_one_line.strip(" .")[:_WIDE]] = None
    return list(reasons)[:_FEW]


def breaks_of(error: BaseException, home: Path) -> list[GraphBreak]:
    """The graph break that a Dynamo error reports; empty if none."""
    stack = getattr(error, "real_stack", None)
    return [_break(stack, str(error), home)] if stack else []


def _break(stack: Any, reason: str, home: Path) -> GraphBreak:
    """Place and line of code of a graph break in the user's code, and torch's reason."""
    said = first_line(reason)[:_WIDE]
    frames = [f for f in stack or () if not Path(f.filename).is_relative_to(_TORCH)]
    users = [f for f in frames if not Path(f.filename).is_relative_to(_OURS)]
    of_the_target = [f for f in users if _is_in(home, Path(f.filename))]
    if not frames:
        return GraphBreak(reason=said)
    # The innermost, of the code that the user can change most easily.
    frame = (of_the_target or users or frames)[-1]
    code = (frame.line or "").partition("  #")[0].strip()[:_WIDE]
    place = ""
    # A file of autocompile would not help a user.
    if users:
        path = Path(frame.filename)
        short = "/".join(path.parts[-2:])
        if of_the_target:
            short = path.relative_to(home).as_posix()
        place = f"{short}:{frame.lineno}"[-_WIDE:]
    return GraphBreak(place=place, code=code, reason=said)


def _is_in(home: Path, path: Path) -> bool:
    """Whether a file is the user's: below the target's folder, and of no installed package."""
    return path.is_relative_to(home) and "site-packages" not in path.parts
