"""Why the winner wins, in sentences over the records.

A sentence is made only of what a trial recorded; where nothing is known, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autocompile.estimate.candidates import Candidate
from autocompile.report import text as show
from autocompile.report.text import many
from autocompile.settings.phases import phase_of
from autocompile.store.record import Record

_LIBRARY = re.compile(
    r"conv|mm$|^addm|matmul|linear|scaled_dot_product|attention|lstm|gru|_rnn|mkldnn|onednn|cudnn"
)
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
        facts = [_graphs(record), _gave_up(record, device)]
        if _replays(record, device):
            one = record.graphs == 1
            facts.append("a CUDA graph replays them" if one else "CUDA graphs replay them")
        return [*filter(None, ("; ".join(filter(None, facts)), _time(record, False)))]
    size = best.record.batch_size
    rivals = [c for c in every if c.record.batch_size == size and not c.record.config.is_baseline]
    if not rivals:
        return []
    near = max(rivals, key=lambda c: (c.sets > 0, c.speedup.value)).record
    total = _eager_part(best.record).get("total")
    is_little = isinstance(total, int) and total <= _FEW
    of_near = filter(None, (_gave_up(near, device), _broken(near)))
    told = (
        _time(best.record, True),
        f"eager runs {many(total or 0, 'operator')} per call: nothing to fuse" if is_little else "",
        *(f"{show.label(near.config)}: {fact}" for fact in of_near),
    )
    return [sentence for sentence in told if sentence]


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


def _time(record: Record, is_eager: bool) -> str:
    """Where the time of an eager call goes, as far as fusing could change it."""
    part = _eager_part(record)
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
        and record.detail.get("cudagraph_skips") == 0
        and not phase_of(record.phase).has_backward
    )


def _gave_up(record: Record, device: str) -> str:
    """That CUDA graphs were asked for and are not there, and torch's reason."""
    is_cpu = device.startswith("cpu")  # where no setting has them
    if is_cpu or not record.config.has_cuda_graphs or not record.detail.get("cudagraph_skips"):
        return ""
    told = ""
    for reason in _listed(record, "cudagraph_skip_reasons")[:1]:
        for pattern, words in _SKIPS:
            reason = pattern.sub(words, show.plain(reason))
        told = f": {show.shorten(reason, _LONG)}"
    return f"torch gave up CUDA graphs{told}"


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


def _eager_part(record: Record) -> Mapping[str, Any]:
    part = record.detail.get("eager")
    return part if isinstance(part, Mapping) else {}


def _listed(record: Record, name: str, kind: type = object) -> list[Any]:
    """A child's list; what is of another kind is left out."""
    listed = record.detail.get(name)
    return [x for x in listed if isinstance(x, kind)] if isinstance(listed, list) else []
