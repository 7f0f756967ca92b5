"""Collects facts that explain why a setting is fast or slow, outside the timing.

Eager's operators are counted by a dispatch mode. Kernel launches and library calls of compiled code
are counted in the source of Inductor's wrappers.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autocompile.errors import first_line
from autocompile.trial.measure.telemetry import loaded_code

_MOST = 12  # entries of each list in a record
_WIDE = 200  # characters of a text from torch
_SKIP = "skipping cudagraphs due to"
_TORCH, _OURS = Path(torch.__file__).parent, Path(__file__).parents[2]

# A call in an Inductor wrapper, with the assignment of its result, if any.
_CALL = re.compile(
    r"^\s+(?:[\w, ()\[\]]+ = )?(?:"
    r"(?P<kernel>(?:cpp|triton|combo|multi_kernel|cutlass|cutedsl|pallas|helion)_\w+)(?:\.run)?"
    r"|extern_kernels\.(?P<extern>\w+)"
    r"|(?:torch\.ops\.(?P<space>\w+)|(?P<aten>aten))\.(?P<op>\w+)(?:\.\w+)?"
    r")\(",
    re.M,
)
_TAIL = re.compile(r"^def (?:get_args|benchmark_compiled_module)\(|^runner = ", re.M)
_FREE = re.compile(r"empty|new_empty|detach|alias|lift_fresh|_local_scalar_dense|_reinterpret")


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


def _launches(source: str) -> dict[str, Counter[str]]:
    """Calls of an Inductor wrapper in Python: ``kernels``, ``library``, PyTorch's ``operators``."""
    # Kernels are defined above this line and benchmarked below the tail; neither is a launch.
    body = source.rpartition("async_compile.wait(globals())")[2]
    if tail := _TAIL.search(body):
        body = body[: tail.start()]
    launches: dict[str, Counter[str]] = {k: Counter() for k in ("kernels", "library", "operators")}
    for m in _CALL.finditer(body):
        if m["kernel"]:
            launches["kernels"][m["kernel"]] += 1
        elif m["extern"]:
            launches["library"][m["extern"]] += 1
        elif m["space"] in ("mkldnn", "mkl", "onednn"):
            launches["library"][m["op"]] += 1
        elif m["space"] != "inductor" and not _FREE.match(m["op"]):
            launches["operators"][m["op"]] += 1
    return launches


def _wrappers() -> dict[Path, str]:
    """File and text of the wrappers that Inductor has loaded; those of kernels have no AOT ID."""
    return {file: text for file, text in loaded_code().items() if "AOT ID" in text[:200]}


class Witness:
    """Records what is compiled after its construction; ``home`` has the user's file."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._before = set(_wrappers())

    def facts(self) -> dict[str, Any]:
        """Graph breaks with their places, and why CUDA graphs were skipped."""
        reasons = getattr(torch._dynamo.utils, "graph_break_reasons", ())
        rows: dict[str, dict[str, Any]] = {}
        for reason in list(reasons)[:100]:
            row = _break(reason.user_stack, reason.reason, self._home)
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

    def compiled(self, recompiles: int, asks_for_graphs: bool) -> dict[str, Any] | None:
        """The launches of one steady call; None if unknown, as after a recompile."""
        texts = [text for file, text in _wrappers().items() if file not in self._before]
        if not texts or recompiles or any("cpp_wrapper_src" in text for text in texts):
            return None
        launches = [_launches(text) for text in texts]
        counters = torch._dynamo.utils.counters
        sums = {k: sum((one[k] for one in launches), Counter()) for k in launches[0]}
        return {
            "graphs": len(texts),
            **{f"{k}_total": sum(v.values()) for k, v in sums.items()},
            **{k: dict(v.most_common(_MOST)) for k, v in sums.items()},
            "templates": sum(n for k, n in sums["kernels"].items() if k.startswith("triton_tem_")),
            "replayed": asks_for_graphs and not counters["inductor"]["cudagraph_skips"],
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
