"""Which trials were measured with nothing in the way, as far as the whole run knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from autocompile.record import Record

__all__ = ["ENOUGH_PROCESSES", "SLOWER", "Calm", "calmness", "slows_eager", "witnesses"]

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

    Args:
        records: of the whole run, all its phases.
    """
    timed = [r for r in records if r.measurement is not None]
    known: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for r in timed:
        if r.duplicate_of is None:  # otherwise it is the same process again
            known.setdefault(_place(r), []).append(_pace_s(r))
    usual = {
        place: tuple(sorted(each)[len(each) // 4] for each in zip(*paces, strict=True))
        for place, paces in known.items()
    }
    return {r.number: _calm(r, usual.get(_place(r), ())) for r in timed}


def slows_eager(record: Record) -> bool:
    """Whether it was the setting itself that stood in eager's way, not others."""
    return record.measurement is not None and "eager_slowed" in record.measurement.flags


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


def _calm(record: Record, usual: tuple[float, ...]) -> Calm:
    assert record.measurement is not None
    pairs = zip(_pace_s(record), usual, strict=False)
    if any(seen > SLOWER * best for seen, best in pairs):
        return Calm.NONE
    if record.measurement.is_sound:
        return Calm.ENOUGH
    return Calm.SOME if record.measurement.is_partly_sound else Calm.NONE


def _place(record: Record) -> tuple[str, int]:
    """Where paces may be compared: in one environment, on one kind of device."""
    return record.config.environment, len(_pace_s(record))


def _pace_s(record: Record) -> tuple[float, ...]:
    return tuple(record.detail.get("pace_s") or ())
