"""States of the host: spells in which everything takes longer, and not everything alike.

A virtual machine shares its cores with others that it cannot see. For seconds or minutes the same
work takes up to 1.5 times as long, eager mode and compiled code not by the same factor, so the
ratio of the two is another one. A small fixed piece of work beside each measurement tells such a
spell; the ratio itself never does, since to drop a figure for its value is to choose the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from autocompile.store.record import Record

__all__ = ["left_out"]

SLOWER = 1.15
"""A process in which the reference work took so many times as long as in the fastest of the same
race was in another state of the host."""


def left_out(raced: Sequence[Record]) -> set[int]:
    """The sets in which the host was slower than in the fastest one, however many they are.

    Also where most sets are slow: counting those makes errors of up to 15 % (studies/truth,
    replay.py).

    Args:
        raced: the records of one setting, of one race.
    """
    seen = {r.race: s for r in raced if r.race is not None and (s := _reference_s(r))}
    if not seen:
        return set()
    limit = SLOWER * min(seen.values())
    return {number for number, seconds in seen.items() if seconds > limit}


def _reference_s(record: Record) -> float | None:
    seconds = record.detail.get("reference_s")
    return seconds if isinstance(seconds, float) and seconds > 0 else None
