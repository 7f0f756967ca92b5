"""Times blocks of calls, and finds their size and the untimed calls before them.

A side slows the first calls of the next one: its threads busy-wait for about ten milliseconds after
their last call, and the caches hold its weights. After eager mode, OpenVINO's first call took 2.5
times as long as its twentieth (studies/truth/carry_over.py). So the loss of the first calls is
measured, and if it matters a block's clock starts after them.
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
_LOST = 0.01  # accepted loss by the first calls, as a share of a block's time
_SLOWER = 1.03  # smaller differences between calls are noise
_NOTHING_LOST_S = 0.2  # a busy-wait does not matter for calls this long


@dataclass(frozen=True)
class Timed:
    """One side of a comparison.

    Attributes:
        call: what is timed.
        restore: restores the state that calls change; not timed.
        context: entered around each block (grad mode, compiler stance); not timed.
    """

    call: Callable[[], Any]
    restore: Callable[[], None]
    context: Callable[[], contextlib.AbstractContextManager[Any]]


def block(side: Timed, calls: int, synchronize: Callable[[], None], lead: int = 0) -> float:
    """Seconds per call of one block, after ``lead`` untimed calls."""
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
    """The number of calls that take ``block_s``, at least 1."""
    calls = 1
    while True:
        took = block(side, calls, synchronize) * calls
        if took >= block_s / 2 or calls >= 2**20:
            return max(1, round(calls * block_s / took))
        calls = max(calls + 1, math.ceil(calls * min(10.0, block_s / took)))


def carried_over(
    sides: Sequence[Timed], calls: Sequence[int], synchronize: Callable[[], None], block_s: float
) -> list[list[float]]:
    """Seconds of each call of a side directly after another side ran.

    Args:
        sides: measured in this order.
        calls: calls of a block, by side.
        synchronize: waits for the device.
        block_s: seconds of a block.

    Returns:
        By side, the times of the first, second, ... call, for about 50 ms. Each is the minimum of
        three runs, since carry-over slows all of them and noise does not; of one run if that shows
        no loss. Empty if a call is too long to lose much.
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
    """Seconds of each call; empty if the first is longer than ``_NOTHING_LOST_S``."""
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
    """How many first calls to leave untimed, so that the rest lose at most 1 % of a block's time.

    Args:
        times: of the first, second, ... call after the other side's; the mean of the later half is
            the steady time.
        calls: calls of a block.
    """
    middle = len(times) // 2
    usual, lost = fmean(times[middle:]) if times else 0.0, 0.0
    for number in range(middle - 1, -1, -1):
        lost += max(0.0, times[number] - _SLOWER * usual)
        if lost > _LOST * usual * calls:
            return number + 1
    return 0
