"""Why the winner wins, in sentences over the records.

A sentence is made only of what a trial recorded; where nothing is known, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autocompile.estimate.candidates import Candidate
from autocompile.report import text as show
from autocompile.report.text import many
from autocompile.settings.phases import phase_of
from autocompile.store.record import Record

_LONG, _SHORT = 90, 48


def why(
    best: Candidate | None, verdict: str, every: Sequence[Candidate], device: str
) -> list[str]:
    """Why the best setting is the best one, or why compiling does not help.

    ``best``: as the report names it; eager where that is to be kept. ``every``: all that worked.
    """
    if best is None:
        return []
    if verdict != "keep_eager":
        record = best.record
        facts = [_graphs(record), _gave_up(record, device)]
        if _replays(record, device):
            one = record.graphs == 1
            facts.append(
                "a CUDA graph replays them" if one else "CUDA graphs replay them"
            )
        sentence = "; ".join(filter(None, facts))
        return [sentence] if sentence else []
    size = best.record.batch_size
    rivals = [
        c
        for c in every
        if c.record.batch_size == size and not c.record.config.is_baseline
    ]
    if not rivals:
        return []
    near = max(rivals, key=lambda c: (c.sets > 0, c.speedup.value)).record
    of_near = filter(None, (_gave_up(near, device), _broken(near)))
    return [f"{show.label(near.config)}: {fact}" for fact in of_near]


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
    return (
        f"{graphs}{rest}; {_broken(record) or many(record.graph_breaks, 'graph break')}"
    )


def _replays(record: Record, device: str) -> bool:
    """Whether CUDA graphs were asked for and torch gave none of them up; no replay is watched."""
    return (
        device.startswith("cuda")
        and record.config.has_cuda_graphs
        and record.cudagraph_skips == 0
        and not phase_of(record.phase).has_backward
    )


def _gave_up(record: Record, device: str) -> str:
    """That CUDA graphs were asked for and are not there, and torch's reason."""
    is_cpu = device.startswith("cpu")  # where no setting has them
    if is_cpu or not record.config.has_cuda_graphs or not record.cudagraph_skips:
        return ""
    reasons = [show.plain(x) for x in _listed(record, "cudagraph_skip_reasons")[:1]]
    return ": ".join(
        ["torch gave up CUDA graphs", *(show.shorten(x, _LONG) for x in reasons)]
    )


def _broken(record: Record) -> str:
    """Where the graph breaks, and over what; the first two places."""
    places = []
    for row in record.breaks:
        place, code, reason = map(show.plain, (row.place, row.code, row.reason))
        code = f"`{show.shorten(code.replace('`', ''), _SHORT)}`" if code else ""
        if where := f"{place} {code}".strip():
            places.append(
                where + (f" ({show.shorten(reason, _LONG)})" if reason else "")
            )
    if not places:
        return ""
    more = f" and {len(places) - 2} more" if len(places) > 2 else ""
    return f"the graph breaks at {', '.join(places[:2])}{more}"


def _listed(record: Record, name: str) -> list[Any]:
    """A child's list; nothing where it is of another kind."""
    listed = record.detail.get(name)
    return listed if isinstance(listed, list) else []
