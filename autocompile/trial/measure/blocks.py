"""Blocks of calls: their time, how many calls make one, and how many have to precede it.

What one side leaves behind slows the first calls of the other: its threads spin for some ten
milliseconds after their last call, and the caches hold its weights. After eager mode OpenVINO took
2.5 times as long for its first call as for its twentieth (studies/truth/carry_over.py). So what the
first calls lose is looked at, and where it matters a block's clock starts after them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

__all__ = ["Timed", "block", "carried_over", "fill", "lead_of"]

_LOOK_S, _LOOKS, _LOOK_CALLS = 0.05, 3, 4
_LOST = 0.01  # of a block's time, by the first calls
_SLOWER = 1.03  # calls that are slower by less are noise
_NOTHING_LOST_S = 0.2  # what threads spin is little beside a call of so long


@dataclass(frozen=True)
class Timed:
    """One side of a comparison.

    Attributes:
        call: what is timed.
        restore: puts the state back that calls change; outside the clock.
        context: entered around each block (grad mode, compiler stance); outside the clock.
    """

    call: Callable[[], Any]
    restore: Callable[[], None]
    context: Callable[[], contextlib.AbstractContextManager[Any]]


def block(side: Timed, calls: int, synchronize: Callable[[], None], lead: int = 0) -> float:
    """Seconds per call of one block; ``lead`` calls before it warm the caches, unseen."""
    side.restore()
    call = side.call
    with side.context():
        for _ in range(lead):
            call()
        synchronize()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        synchronize()
        end = time.perf_counter_ns()
    return max(1, end - begin) / 1e9 / calls


def fill(side: Timed, synchronize: Callable[[], None], block_s: float) -> int:
    """How many calls seem to fill a block just now."""
    calls = 1
    while True:
        took = block(side, calls, synchronize) * calls
        if took >= block_s / 2 or calls >= 2**20:
            return max(1, round(calls * block_s / took))
        calls = max(calls + 1, math.ceil(calls * min(10.0, block_s / took)))


def carried_over(
    sides: Sequence[Timed], calls: Sequence[int], synchronize: Callable[[], None], block_s: float
) -> list[list[float]]:
    """How long each call of a side takes that follows another side's, in seconds.

    Args:
        sides: in the order in which they are looked at.
        calls: of a block of each.
        synchronize: waits for the device.
        block_s: what such a block lasts.

    Returns:
        By side, the times of the first, second, third, ... call: as many as take 50 ms, the least
        of three looks, since what is carried over slows every one and noise does not. Of one look,
        where nothing is lost by that; none of calls that are too long to lose much.
    """
    counts = [max(_LOOK_CALLS, math.ceil(n * _LOOK_S / block_s)) for n in calls]
    looks: list[list[list[float]]] = [[] for _ in sides]
    for look in range(_LOOKS):
        for side, count, seen in zip(sides, counts, looks, strict=True):
            seen.append(_each(side, count, synchronize))
        if look == 0 and not any(lead_of(s[0], n) for s, n in zip(looks, calls, strict=True)):
            break
    return [[min(times) for times in zip(*seen, strict=False)] for seen in looks]


def _each(side: Timed, calls: int, synchronize: Callable[[], None]) -> list[float]:
    """Seconds of each call of a block; none where the first takes so long that nothing matters."""
    side.restore()
    times = []
    with side.context():
        for _ in range(calls):
            begin = time.perf_counter_ns()
            side.call()
            synchronize()
            times.append((time.perf_counter_ns() - begin) / 1e9)
            if times[0] > _NOTHING_LOST_S:
                return []
    return times


def lead_of(times: Sequence[float], calls: int) -> int:
    """How many calls to leave out, so that the others lose no more than 1 % of a block's time.

    Args:
        times: of the first, second, ... call after the other side's; the later half is taken for
            the usual pace, so that what goes on for longer is not seen here.
        calls: of a block.
    """
    middle = len(times) // 2
    usual, lost = fmean(times[middle:]) if times else 0.0, 0.0
    for number in range(middle - 1, -1, -1):
        lost += max(0.0, times[number] - _SLOWER * usual)
        if lost > _LOST * usual * calls:
            return number + 1
    return 0
