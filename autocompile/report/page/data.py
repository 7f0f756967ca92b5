"""What the plots take from the records: finalists, and pairs of trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autocompile.estimate.candidates import Candidate, candidates
from autocompile.report import text as show
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Record

__all__ = ["Pair", "finalists", "pairs"]


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
