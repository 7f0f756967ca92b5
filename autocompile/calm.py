"""Which trials were measured with nothing in the way, as far as the whole run knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from autocompile.record import UNSOUND, Record

__all__ = ["ENOUGH_PROCESSES", "SLOWER", "Calm", "calmness", "pace_of", "slows_eager", "witnesses"]

ENOUGH_PROCESSES = 3
"""With fewer that nothing disturbed, how far processes differ is not known."""

SLOWER = 1.08
"""A machine that takes so many times as long as usual for the same work is slowed by others."""


_NEAR = 12  # trials before, and as many after, that tell what is usual
_FEW = 2  # wholly calm processes are better witnesses than all together
_MANY, _SELDOM = 8, 0.25  # from so many processes on, so few calm ones are chance


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
    is what a quarter of the trials around it reached: fewer may have met the high clock of a
    machine that was still cool.

    Where fewer than a quarter of the processes of a phase were calm, none was: beside a neighbour
    that rests two thirds are, and on a machine that never rests one in twenty seems so, by chance.
    To go by those few would be to leave out most of what is known of one setting and not of
    another. What another phase saw, at another time, does not count.

    Args:
        records: of the whole run, all its phases.
    """
    timed = sorted((r for r in records if r.measurement is not None), key=lambda r: r.number)
    # One that was answered by another is the same process again.
    processes = [r for r in timed if r.duplicate_of is None]
    found = {r.number: _calm(r, ()) for r in timed}
    for place in {_place(r) for r in processes}:
        there = [r for r in processes if _place(r) == place]
        for index, record in enumerate(there):
            first = max(0, min(index - _NEAR, len(there) - 2 * _NEAR - 1))
            near = [pace_of(r) for r in there[first : first + 2 * _NEAR + 1]]
            usual = tuple(sorted(each)[len(each) // 4] for each in zip(*near, strict=True))
            found[record.number] = _calm(record, usual)
    for phase in {r.phase for r in timed}:
        # What slows eager by itself says nothing about the machine.
        ours = [r for r in processes if r.phase == phase and not slows_eager(r)]
        calm = sum(found[r.number] is Calm.ENOUGH for r in ours)
        if len(ours) >= _MANY and calm < _SELDOM * len(ours):
            found |= {r.number: Calm.NONE for r in timed if r.phase == phase}
    return found


def pace_of(record: Record) -> tuple[float, ...]:
    """What its process reached at best, in seconds; empty if that is not known."""
    seen: Any = record.detail.get("pace_s")
    if not isinstance(seen, (list, tuple)):
        return ()
    found = tuple(s for s in seen if isinstance(s, float) and 0 < s < 1)
    return found if len(found) == len(seen) else ()


def slows_eager(record: Record) -> bool:
    """Whether it was the setting itself that stood in eager's way, and nobody else."""
    flags = record.measurement.flags if record.measurement else ()
    return set(flags) & UNSOUND == {"eager_slowed"}


def witnesses(
    measured: Sequence[Record], calm: Mapping[int, Calm]
) -> tuple[Sequence[Record], Calm]:
    """Whose speed-ups count, and how calm they were together.

    Calm ones alone, if there are two of them, or nothing else; else with those that were calm for
    some rounds; else all that there are.
    """
    levels = [calm.get(r.number, Calm.NONE) for r in measured]
    enough = [r for r, level in zip(measured, levels, strict=True) if level is Calm.ENOUGH]
    if len(enough) >= min(_FEW, len(measured)):
        return enough, Calm.ENOUGH
    some = [r for r, level in zip(measured, levels, strict=True) if level > Calm.NONE]
    return (some, Calm.SOME) if some else (measured, Calm.NONE)


def _calm(record: Record, usual: tuple[float, ...]) -> Calm:
    assert record.measurement is not None
    pairs = zip(pace_of(record), usual, strict=False)
    if any(seen > SLOWER * best for seen, best in pairs):
        return Calm.NONE
    if record.measurement.is_sound:
        return Calm.ENOUGH
    return Calm.SOME if record.measurement.is_partly_sound else Calm.NONE


def _place(record: Record) -> tuple[str, int]:
    """Where paces may be compared: in one environment, on one kind of device."""
    return record.config.environment, len(pace_of(record))
