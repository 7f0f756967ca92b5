"""Leaves out sets measured while the host was slow.

A virtual machine shares its cores with others. Contention makes the same work up to 1.5 times
slower for seconds or minutes, eager mode and compiled code by different factors, which changes
their ratio. Such a state is detected by a reference workload next to each measurement, never by
the ratio itself: that would select the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from autocompile.store.record import Record

__all__ = ["left_out"]

SLOWER = 1.15
"""Largest time of the reference workload, relative to the fastest set of the same race."""


def left_out(raced: Sequence[Record]) -> set[int]:
    """The sets in which the host was slower than in the fastest one, even if those are most.

    Counting slow sets makes errors of up to 15 % (studies/truth, replay.py).

    Args:
        raced: records of one setting in one race.
    """
    seen = {r.race: s for r in raced if r.race is not None and (s := _reference_s(r))}
    if not seen:
        return set()
    limit = SLOWER * min(seen.values())
    return {number for number, seconds in seen.items() if seconds > limit}


def _reference_s(record: Record) -> float | None:
    seconds = record.detail.get("reference_s")
    return seconds if isinstance(seconds, float) and seconds > 0 else None
