"""What Dynamo and Inductor have compiled, where graphs break, and which operators eager runs."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autocompile.errors import first_line
from autocompile.protocol.processes import children
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import DIMENSIONS

# On a CPU these change nothing once the code is there. On a GPU they decide how it is launched.
_AT_RUN_TIME = ("triton.", "coordinate_descent_tuning", "max_autotune")

# All that these do is in the source; another may be a flag of the C++ compiler.
_OPTIONS_SHOWN = frozenset({"layout_optimization", "conv_1x1_as_mm", "combo_kernels"})

_SMALL_S = 2e-4  # of a kernel of one element with nothing beside it, at most
_UNDISTURBED = 20  # such kernels in a row

_MOST = 12  # entries of each list in a record
_WIDE = 200  # characters of a text from torch
_SKIP = "skipping cudagraphs due to"
_TORCH, _OURS = Path(torch.__file__).parent, Path(__file__).parents[2]
_FREE = re.compile(r"empty|new_empty|detach|alias|lift_fresh|_local_scalar_dense|_reinterpret")


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


def same_code_key(config: CompileConfig, device: torch.device) -> str:
    """Equal for two settings of one phase whose calls launch the same code in the same way.

    Inductor's modules hold the source of every kernel and the calls of libraries between them.
    Empty where nothing is known: another backend, or code from a cache.
    """
    if not config.entry.by_inductor:
        return ""
    home = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")).resolve()
    cache = sys.modules.get("torch._inductor.codecache")
    texts = []
    for module in list(getattr(getattr(cache, "PyCodeCache", None), "modules", ())):
        file = Path(getattr(module, "__file__", None) or "").resolve()
        if home in file.parents:  # modules of the fork server are elsewhere
            with contextlib.suppress(OSError):
                texts.append(file.read_text("utf-8", "replace").replace(str(home), ""))
    if not texts:
        return ""
    options = {**torch._inductor.list_mode_options().get(config.mode, {}), **dict(config.options)}
    launch = {
        k: v for k, v in options.items() if device.type != "cpu" and k.startswith(_AT_RUN_TIME)
    }
    around = {d.name: getattr(config, d.name) for d in DIMENSIONS if not d.in_source}
    around["options"] = [o for o in config.options if o[0] not in _OPTIONS_SHOWN | launch.keys()]
    # Else torch sets it at each call, which takes a while.
    around["dynamic"] = config.dynamic is None
    text = repr((sorted(texts), sorted(launch.items()), sorted(around.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def found_by_dynamo(home: Path) -> dict[str, Any]:
    """Graph breaks with their places, and why CUDA graphs were skipped.

    ``home`` is the folder of the user's file.
    """
    reasons = getattr(torch._dynamo.utils, "graph_break_reasons", ())
    rows: dict[str, dict[str, Any]] = {}
    for reason in list(reasons)[:100]:
        row = _break(reason.user_stack, reason.reason, home)
        rows.setdefault(f"{row['place']} {row['reason']}", row)
    metrics = torch._dynamo.utils.get_compilation_metrics()
    texts = (getattr(m, "cudagraph_skip_reason", None) for m in metrics)
    skipped = [
        " ".join(text.partition("Found from")[0].replace(_SKIP, "").split()).strip(" .")[:_WIDE]
        for text in filter(None, texts)
    ]
    with_code = [row for row in rows.values() if row["code"]]
    return {
        "breaks": (with_code or list(rows.values()))[:_MOST],
        "cudagraph_skip_reasons": list(dict.fromkeys(skipped))[:5],
    }


def breaks_of(error: BaseException, home: Path) -> list[dict[str, Any]]:
    """The graph break that a Dynamo error reports; empty if none."""
    stack = getattr(error, "real_stack", None)
    return [_break(stack, str(error), home)] if stack else []


def _break(stack: Any, reason: str, home: Path) -> dict[str, Any]:
    """Place and line of code of a graph break in the user's code, and torch's reason."""
    row = {"place": "", "code": "", "reason": first_line(reason)[:_WIDE]}
    frames = [(Path(f.filename), f) for f in stack or ()]
    frames = [each for each in frames if not each[0].is_relative_to(_TORCH)]
    users = [each for each in frames if not each[0].is_relative_to(_OURS)]
    of_the_target = [
        (path, frame)
        for path, frame in users
        if path.is_relative_to(home) and "site-packages" not in path.parts
    ]
    if frames:
        path, frame = (of_the_target or users or frames)[-1]
        row["code"] = (frame.line or "").partition("  #")[0].strip()[:_WIDE]
    if users:  # a file of autocompile would not help a user
        short = path.relative_to(home).as_posix() if of_the_target else "/".join(path.parts[-2:])
        row["place"] = f"{short}:{frame.lineno}"[-_WIDE:]
    return row


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that compute something, and the seconds of each kind."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = time.perf_counter()
        output = func(*args, **(kwargs or {}))
        took = time.perf_counter() - begin
        if not _is_free(func):
            name = func._schema.name.removeprefix("aten::")
            self.count[name] += 1
            self.seconds[name] += took
        return output


def _is_free(func: Any) -> bool:
    """Whether the operator computes nothing: a view, an allocation or ``item()``."""
    name = func._schema.name
    if name.startswith(("prim::", "profiler::")) or _FREE.match(name.partition("::")[2]):
        return True
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


def operators(call: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """Operators of one call: the total, the count of each kind, and on a CPU its seconds.

    Use after the timing: it makes two calls, and counting slows the second.
    """
    begin = time.perf_counter()
    call()
    took, seen = time.perf_counter() - begin, _Operators()
    with seen:
        call()
    facts: dict[str, Any] = {
        "total": sum(seen.count.values()),
        "count": dict(seen.count.most_common(_MOST)),
    }
    if device.type == "cpu":  # on other devices a call returns before it has finished
        longest = sorted(seen.seconds.items(), key=lambda item: -item[1])[:_MOST]
        facts["seconds"] = {name: round(s, 9) for name, s in longest}
        facts["seconds_total"] = round(sum(seen.seconds.values()), 9)
        facts["call_s"] = round(took, 9)
    return facts
