"""Why the winner wins and the others do not, in sentences over the records.

A sentence is made only of what a trial recorded; where nothing is known, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autocompile.estimate.candidates import Candidate
from autocompile.estimate.decision import compare
from autocompile.report import text as show
from autocompile.report.text import many
from autocompile.settings.phases import phase_of
from autocompile.store.record import Outcome, Record

__all__ = ["why", "why_not"]

_LIBRARY = re.compile(
    r"conv|mm$|^addm|matmul|linear|scaled_dot_product|attention|lstm|gru|_rnn|mkldnn|onednn|cudnn"
)
_UNFUSED = ("cudagraphs", "aot_eager")
_FEW = 3  # operators that leave nothing to fuse
_MUCH = 0.5  # of the time of a call: what is worth a sentence
_LONG, _SHORT = 90, 48
_SKIPS = (
    (re.compile(r"mutated inputs.*"), "an input is changed in place"),
    (re.compile(r"cpu device.*"), "a tensor is on the CPU"),
    (re.compile(r"multiple devices.*"), "tensors are on several devices"),
)


def why(best: Candidate | None, verdict: str, every: Sequence[Candidate], device: str) -> list[str]:
    """Why the best setting is the best one, or why compiling does not help.

    ``best``: as the report names it; eager where that is to be kept. ``every``: all that worked.
    """
    if best is None or verdict not in ("faster", "keep_eager"):
        return []
    if verdict == "faster":
        record = best.record
        facts = [_graphs(record), _became(record), *_gave_up(record, device)]
        if _replays(record, device):
            one = record.graphs == 1
            facts.append("a CUDA graph replays them" if one else "CUDA graphs replay them")
        return [*filter(None, ("; ".join(filter(None, facts)), _time(record, False)))]
    size = best.record.batch_size
    rivals = [c for c in every if c.record.batch_size == size and not c.record.config.is_baseline]
    if not rivals:
        return []
    near = max(rivals, key=lambda c: (c.sets > 0, c.speedup.value)).record
    label, became, broken = show.label(near.config), _became(near), _broken(near)
    total = _count(best.record, "eager", "total")
    is_little = total is not None and total <= _FEW
    told = (
        _time(best.record, True),
        f"eager runs {many(total or 0, 'operator')} per call: nothing to fuse" if is_little else "",
        f"{label}: {became}" if became else "",
        *_gave_up(near, device),
        f"{label}: {broken}" if broken else "",
    )
    return [sentence for sentence in told if sentence]


def why_not(
    best: Candidate | None,
    every: Iterable[Candidate],
    records: Iterable[Record],
    ties: Iterable[int],
    device: str,
) -> list[dict[str, Any]]:
    """Settings that lose, grouped by the reason: ``settings``, ``numbers`` and ``reason``.

    Those that tie are told elsewhere, and so are failures, except where the graph broke.
    """
    groups: dict[str, list[tuple[Record, float | None]]] = {}
    left_out = {*ties, best.record.number if best else None}
    for c in every:
        if best is None or c.record.number in left_out or c.record.config.is_baseline:
            continue
        if c.record.batch_size == best.record.batch_size and (reason := _lost(c, best, device)):
            behind = c.speedup.value / best.speedup.value
            groups.setdefault(reason, []).append((c.record, behind))
    for r in records:
        is_own = r.duplicate_of is None and r.role == "search"
        if is_own and r.outcome is Outcome.GRAPH_BREAK and (broken := _broken(r)):
            groups.setdefault(broken, []).append((r, None))
    whose = "eager's" if best and best.record.config.is_baseline else "the best's"
    rows = []
    order = sorted(groups.items(), key=lambda item: max(b or 0.0 for _, b in item[1]), reverse=True)
    for reason, members in order:
        speeds = sorted({f"{b:.2f}" for _, b in members if b is not None})
        if speeds and not reason.startswith("as fast"):
            reason += f" ({' to '.join(dict.fromkeys((speeds[0], speeds[-1])))}× {whose} speed)"
        settings = list(dict.fromkeys(show.label(r.config) for r, _ in members))
        numbers = [r.number for r, _ in members]
        rows.append({"settings": settings, "numbers": numbers, "reason": reason})
    return rows


def _lost(c: Candidate, best: Candidate, device: str) -> str:
    """Why a setting that works is not the best; empty where nothing is known."""
    if c.slows_eager:
        return "eager runs slower beside it than alone, so its speed-up is unknown"
    told = [
        *_refreshed(c.record, best),
        *_gave_up(c.record, device),
        *_worse_code(c.record, best.record),
    ]
    if _replays(best.record, device) and not c.record.config.has_cuda_graphs:
        told.append("no CUDA graphs")
    if compare(best, c).low <= 1 and not best.record.config.is_baseline:
        mine, its = best.record.compile_s, c.record.compile_s
        longer = its - mine if mine is not None and its is not None else 0.0
        rest = [f"compiles {show.seconds(longer)} longer"] if longer >= 0.1 else []
        return ", ".join(["as fast within the noise", *rest])
    return "; ".join(told)


def _refreshed(record: Record, best: Candidate) -> Iterator[str]:
    """That new weights cost a setting too much: without that it would be the faster one."""
    if not record.refresh_s or not record.calls_per_update or not record.measurement:
        return
    # By ratios: seconds of two processes are not comparable, nor ratios to two eager modes.
    is_elsewhere = record.config.environment != best.record.config.environment
    if not is_elsewhere and record.measurement.speedup.low > best.speedup.value:
        calls = show.thousands(record.calls_per_update)
        yield f"new weights, every {calls} calls, cost more than it saves"


def _worse_code(record: Record, best: Record) -> Iterator[str]:
    """More breaks, compiles or calls than the best has."""
    if (record.graph_breaks or 0) > (best.graph_breaks or 0):
        yield _broken(record) or many(record.graph_breaks or 0, "graph break")
    if (record.recompiles or 0) > (best.recompiles or 0):
        # A reason begins with which frame it is and which of its versions.
        reasons = [
            re.sub(r"^\d+/\d+: ", "", r) for r in _listed(record, "recompile_reasons", str)[:1]
        ]
        told = "".join(f" ({show.shorten(show.plain(r), _LONG)})" for r in reasons if r)
        yield f"compiled again {many(record.recompiles or 0, 'time')}{told}"
    mine, its, eager = _launches(record), _launches(best), _count(record, "eager", "total")
    if record.config.backend in _UNFUSED:
        if eager:
            yield f"fuses nothing: the {many(eager, 'operator')} of eager"
    elif mine and _count(record, "compiled", "kernels_total") == 0:
        yield f"fuses nothing: {many(mine, 'call')} of libraries and operators"
    elif mine and its and mine > its:
        yield f"{many(mine, 'call')} instead of {its}"


def _graphs(record: Record) -> str:
    if not record.graphs:
        return ""
    graphs = "one graph" if record.graphs == 1 else f"{record.graphs} graphs"
    if not record.graph_breaks:
        return f"{graphs}, no breaks"
    rest = " and the rest in Python" if record.graphs == 1 else ""
    return f"{graphs}{rest}; {_broken(record) or many(record.graph_breaks, 'graph break')}"


def _became(record: Record) -> str:
    """``16 operators of eager become 8 calls: 4 fused kernels and 4 library calls``."""
    part, launches = _part(record, "compiled"), _launches(record)
    eager = _count(record, "eager", "total")
    if launches is None or not eager or (not launches and part.get("replayed")):
        return ""  # what a graph replays is not seen one by one
    kernels, library, plain = (part[f"{k}_total"] for k in ("kernels", "library", "operators"))
    if not kernels:
        return f"nothing is fused: {many(launches, 'call')} of libraries and operators as in eager"
    parts = [many(kernels, "fused kernel")]
    if templates := _count(record, "compiled", "templates"):
        parts[0] += f" ({templates} from Triton templates)"
    if library:
        parts.append(f"{many(library, 'library call')} ({_names(part.get('library'))})")
    if plain:
        parts.append(f"{many(plain, 'plain operator')} ({_names(part.get('operators'))})")
    kinds = parts[0]
    if len(parts) > 1:
        kinds = f"{many(launches, 'call')}: {', '.join(parts[:-1])} and {parts[-1]}"
    return f"{many(eager, 'operator')} of eager become{'s' * (eager == 1)} {kinds}"


def _time(record: Record, is_eager: bool) -> str:
    """Where the time of an eager call goes, as far as fusing could change it."""
    part = _part(record, "eager")
    seconds, total, call = (part.get(k) for k in ("seconds", "seconds_total", "call_s"))
    if not isinstance(seconds, Mapping) or not total or not call or total > 1.5 * call:
        return ""  # in the last case other load disturbed the profile
    library = {n: s for n, s in seconds.items() if _LIBRARY.search(n)}
    share, between = sum(library.values()) / max(total, call), 1 - total / call
    if share >= _MUCH:
        rest = ", which compiled code makes too" if is_eager else ""
        return f"{share * 100:.0f} % of an eager call is in library calls ({_names(library)}){rest}"
    if between >= _MUCH:
        return f"{between * 100:.0f} % of an eager call is spent between operators, in Python"
    return ""


def _names(counts: object) -> str:
    """The names with the largest figures, at most three."""
    if not isinstance(counts, Mapping):
        return ""
    names = sorted(counts, key=lambda name: -counts[name])
    shown = list(dict.fromkeys(show.plain(name).strip("_") for name in names))
    return ", ".join(shown[:3]) + (", …" if len(shown) > 3 else "")


def _replays(record: Record, device: str) -> bool:
    """Whether CUDA graphs were asked for and torch gave none of them up; no replay is watched."""
    return (
        device.startswith("cuda")
        and record.config.has_cuda_graphs
        and not record.detail.get("cudagraph_skips")
        and not phase_of(record.phase).has_backward
        and _part(record, "compiled").get("replayed") is True
    )


def _gave_up(record: Record, device: str) -> Iterator[str]:
    """That CUDA graphs were asked for and are not there, and torch's reason."""
    if device.startswith("cpu") or not record.config.has_cuda_graphs:
        return  # on a CPU no setting has them
    if record.detail.get("cudagraph_skips"):
        told = ""
        for reason in _listed(record, "cudagraph_skip_reasons")[:1]:
            for pattern, words in _SKIPS:
                reason = pattern.sub(words, show.plain(reason))
            told = f": {show.shorten(reason, _LONG)}"
        yield f"torch gave up CUDA graphs{told}"


def _broken(record: Record) -> str:
    """Where the graph breaks, and over what; the first two places."""
    places = []
    for row in _listed(record, "breaks", dict):
        place, code, reason = (show.plain(row.get(k, "")) for k in ("place", "code", "reason"))
        code = f"`{show.shorten(code.replace('`', ''), _SHORT)}`" if code else ""
        if where := f"{place} {code}".strip():
            places.append(where + (f" ({show.shorten(reason, _LONG)})" if reason else ""))
    if not places:
        return ""
    more = f" and {len(places) - 2} more" if len(places) > 2 else ""
    return f"the graph breaks at {', '.join(places[:2])}{more}"


def _launches(record: Record) -> int | None:
    """Kernels, library calls and operators that one compiled call launches."""
    counts = [_count(record, "compiled", f"{k}_total") for k in ("kernels", "library", "operators")]
    return None if None in counts else sum(c for c in counts if c is not None)


def _count(record: Record, part: str, name: str) -> int | None:
    value = _part(record, part).get(name)
    return value if isinstance(value, int) else None


def _part(record: Record, name: str) -> Mapping[str, Any]:
    part = record.detail.get(name)
    return part if isinstance(part, Mapping) else {}


def _listed(record: Record, name: str, kind: type = object) -> list[Any]:
    """A child's list; what is of another kind is left out."""
    listed = record.detail.get(name)
    return [x for x in listed if isinstance(x, kind)] if isinstance(listed, list) else []
