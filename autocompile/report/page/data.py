"""What the plots take from the records: finalists, pairs of trials, and the seconds of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autocompile.estimate.candidates import Candidate, candidates
from autocompile.report import text as show
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Record

__all__ = ["Pair", "finalists", "pairs", "seconds_by_step"]

_STEPS = {
    "start and end": ("import", "build", "exit"),
    "eager": ("eager",),
    "compile": ("compile",),
    "verify": ("verify",),
    "measure": ("measure",),
}
_LEAST = 0.001  # of the whole time


@dataclass(frozen=True)
class Pair:
    """Two trials that differ in one dimension; ``ratio``: how many times as fast the first is."""

    number: int
    base: int
    ratio: float


def finalists(best: Mapping[str, Any], records: Sequence[Record]) -> list[Candidate]:
    """The settings that were raced at the batch size of the best, or else all, fastest first."""
    here = [r for r in records if r.batch_size == best.get("batch_size")]
    found = [c for c in candidates(here) if not c.record.config.is_baseline]
    raced = [c for c in found if c.sets]
    return sorted(raced or found, key=lambda c: c.speedup.value, reverse=True)


def pairs(records: Sequence[Record]) -> dict[str, list[Pair]]:
    """Pairs of search trials of one phase by what they differ in: ``mode max-autotune``."""
    speed = {
        (r.config, r.batch_size): (r.number, r.measurement.speedup.value)
        for r in records
        if r.ok and r.measurement and r.role == "search"
    }
    found: dict[str, list[Pair]] = {}
    for (config, size), (number, value) in speed.items():
        for name, base in _without_one(config):
            if other := speed.get((base, size)):
                found.setdefault(name, []).append(Pair(number, other[0], value / other[1]))
    return found


def _without_one(config: CompileConfig) -> Iterator[tuple[str, CompileConfig]]:
    """What is special about a setting, each with the setting that lacks just that."""
    for dimension, value in config.changed():
        if dimension.name == "backend":
            continue
        base = dataclasses.replace(config, **{dimension.name: dimension.default})
        head = f"{dimension.name.replace('_', ' ')} " if dimension.label is str else ""
        yield show.plain(f"{head}{dimension.label(value)}"), base
    eager = dataclasses.replace(config, backend="eager")
    if not config.is_eager and dataclasses.replace(eager, backend=config.backend) == config:
        yield show.plain(f"backend {config.backend} in place of eager"), eager


def seconds_by_step(
    trials: Sequence[Mapping[str, Any]], records: Sequence[Record]
) -> dict[str, list[float]]:
    """Seconds of each trial in each step that took any; what no record knows has a name too.

    The settings of a race share its process, of which each has an equal part.
    """
    steps = {r.number: r.step_s for r in records if r.step_s}

    def share(trial: Mapping[str, Any], parts: Sequence[str]) -> float:
        own = steps.get(trial["number"], {})
        part: float = sum(own.get(step, 0.0) for step in parts)
        return trial["wall_s"] * part / whole if (whole := sum(own.values())) else 0.0

    found = {name: [share(t, parts) for t in trials] for name, parts in _STEPS.items()}
    known = map(sum, zip(*found.values(), strict=True))
    rest = [t["wall_s"] - s for t, s in zip(trials, known, strict=True)]
    found["step unknown" if steps else "trials"] = rest
    least_s = _LEAST * sum(t["wall_s"] for t in trials)
    return {name: seconds for name, seconds in found.items() if sum(seconds) > least_s}
