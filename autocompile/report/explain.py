"""Why the winner wins, in sentences over the records.

A sentence is made only of what a trial recorded; where nothing is known, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autocompile.estimate.candidates import Candidate
from autocompile.report import text as show
from autocompile.report.text import many
from autocompile.settings.phases import phase_of
from autocompile.store.record import Record

_LONG, _SHORT = 90, 48


def why(best: Candidate | None, verdict: str, every: Sequence[Candidate], device: str) -> list[str]:
    """Why the best setting is the best one, or why compiling does not help.

    ``best``: as the report names it; eager where that is to be kept. ``every``: all that worked.
    """
    if best is None or verdict not in ("faster", "keep_eager"):
        return []
    if verdict == "faster":
        record = best.record
        facts = [_graphs(record), _became(record), _gave_up(record, device)]
        if _replays(record, device):
            is_one = record.graphs == 1
            facts.append("a CUDA graph replays them" if is_one else "CUDA graphs replay them")
        known = "; ".join(filter(None, facts))
        return [known] if known else []
    size = best.record.batch_size
    rivals = [c for c in every if c.record.batch_size == size and not c.record.config.is_baseline]
    if not rivals:
        return []
    near = max(rivals, key=lambda c: (c.sets > 0, c.speedup.value)).record
    facts = [_became(near), _gave_up(near, device), _broken(near)]
    return [f"{show.label(near.config)}: {fact}" for fact in facts if fact]


def obstacles(records: Sequence[Record], device: str) -> Iterator[str]:
    """Where graphs break and why CUDA graphs are given up, each with the trials that saw it."""
    seen: dict[str, list[int]] = {}
    for record in records:
        if record.duplicate_of is None and record.role == "search":
            for fact in filter(None, (_broken(record), _gave_up(record, device))):
                seen.setdefault(fact, []).append(record.number)
    for fact, (first, *others) in seen.items():
        yield f"trial {first}{f' and {len(others)} more' if others else ''}: {fact}"


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
    part, eager = _part(record, "compiled"), _part(record, "eager").get("total")
    counts = [part.get(f"{kind}_total") for kind in ("kernels", "library", "operators")]
    known = [count for count in counts if isinstance(count, int)]
    launches = sum(known)
    if not isinstance(eager, int) or not eager or known != counts:
        return ""
    if not launches and part.get("replayed"):
        return ""  # what a graph replays is not seen one by one
    kernels, library, plain = known
    if not kernels:
        return f"nothing is fused: {many(launches, 'call')} of libraries and operators as in eager"
    parts = [many(kernels, "fused kernel")]
    parts += [many(library, "library call")] if library else []
    parts += [many(plain, "plain operator")] if plain else []
    kinds = parts[0]
    if len(parts) > 1:
        kinds = f"{many(launches, 'call')}: {', '.join(parts[:-1])} and {parts[-1]}"
    return f"{many(eager, 'operator')} of eager become{'s' * (eager == 1)} {kinds}"


def _replays(record: Record, device: str) -> bool:
    """Whether CUDA graphs were asked for and torch gave none of them up; no replay is watched."""
    return (
        device.startswith("cuda")
        and record.config.has_cuda_graphs
        and not record.detail.get("cudagraph_skips")
        and not phase_of(record.phase).has_backward
        and _part(record, "compiled").get("replayed") is True
    )


def _gave_up(record: Record, device: str) -> str:
    """That CUDA graphs were asked for and are not there, and torch's reason."""
    is_cpu = device.startswith("cpu")  # where no setting has them
    if is_cpu or not record.config.has_cuda_graphs or not record.detail.get("cudagraph_skips"):
        return ""
    reasons = _listed(record, "cudagraph_skip_reasons")[:1]
    because = f": {show.shorten(show.plain(reasons[0]), _LONG)}" if reasons else ""
    return f"torch gave up CUDA graphs{because}"


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


def _part(record: Record, name: str) -> Mapping[str, Any]:
    part = record.detail.get(name)
    return part if isinstance(part, Mapping) else {}


def _listed(record: Record, name: str, kind: type = object) -> list[Any]:
    """A child's list; what is of another kind is left out."""
    listed = record.detail.get(name)
    return [x for x in listed if isinstance(x, kind)] if isinstance(listed, list) else []
