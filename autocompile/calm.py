"""Which trials were measured with nothing in the way, as far as the whole run knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from autocompile.record import Record

__all__ = ["ENOUGH_PROCESSES", "SLOWER", "Calm", "calmness", "witnesses"]

ENOUGH_PROCESSES = 3
"""With fewer that nothing disturbed, how far processes differ is not known."""

SLOWER = 1.08
"""A machine that takes so many times as long as usual for the same work is slowed by others."""


class Calm(IntEnum):
    """How much of a trial was measured with nothing in the way."""

    NONE = 0
    SOME = 1
    """Fewer rounds than are needed, but rounds that say how fast the setting is."""
    ENOUGH = 2


def calmness(records: Iterable[Record]) -> dict[int, Calm]:
    """How calm each trial was that timed something, by its number.

    The first trials cannot know that the machine is slow just then; it shows when later ones do
    the same work faster (``pace_s``, which :mod:`autocompile.trial.pace` explains). What is usual
    is what a quarter of the trials reached: fewer may have met a clock that is high for a moment.
    """
    timed = [r for r in records if r.measurement is not None]
    usual: dict[str, tuple[float, ...]] = {}
    for place in {r.config.environment for r in timed}:
        paces = [_pace_s(r) for r in timed if r.config.environment == place]
        known = [p for p in paces if p and len(p) == len(paces[0])]
        usual[place] = tuple(sorted(each)[len(each) // 4] for each in zip(*known, strict=True))
    return {r.number: _calm(r, usual) for r in timed}


def witnesses(
    measured: Sequence[Record], calm: Mapping[int, Calm]
) -> tuple[Sequence[Record], Calm]:
    """Whose speed-ups count, and how calm they were together.

    Calm ones alone, if they are enough to know how far processes differ; else with those that were
    calm for some rounds; else all that there are.
    """
    levels = [calm.get(r.number, Calm.NONE) for r in measured]
    enough = [r for r, level in zip(measured, levels, strict=True) if level is Calm.ENOUGH]
    if len(enough) >= min(ENOUGH_PROCESSES, len(measured)):
        return enough, Calm.ENOUGH
    some = [r for r, level in zip(measured, levels, strict=True) if level > Calm.NONE]
    return (some, Calm.SOME) if some else (measured, Calm.NONE)


def _calm(record: Record, usual: Mapping[str, tuple[float, ...]]) -> Calm:
    assert record.measurement is not None
    pairs = zip(_pace_s(record), usual[record.config.environment], strict=False)
    if any(seen > SLOWER * best for seen, best in pairs):
        return Calm.NONE
    if record.measurement.is_sound:
        return Calm.ENOUGH
    return Calm.SOME if record.measurement.is_partly_sound else Calm.NONE


def _pace_s(record: Record) -> tuple[float, ...]:
    return tuple(record.detail.get("pace_s") or ())
