"""Time two callables against each other, in pairs.

Eager and compiled blocks alternate in one process in random order, so that clocks, load and heat
touch both alike. A block is 20 to 50 ms of calls between two synchronizations. Rounds go on until
the interval of the speed-up is narrow enough: its width decides, not its significance, which
repeated looks would inflate (about 14 % false alarms for five looks at p < 0.05).
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from autocompile.record import Measurement
from autocompile.stats import signed_rank_interval

__all__ = ["Limits", "Timed", "paired_blocks"]

_FIRST_LOOK, _LOOK_EVERY = 8, 4
_WARM_CALLS = 3  # CUDA graphs: warm-up, record, replay
_TURNS, _WARM_BLOCKS = 4, 40


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes:
        half_width: stop when the speed-up is known to this relative half-width.
        max_rounds: or after so many rounds.
        max_s: or after so many seconds, once eight rounds are there.
        block_s: about how long a block takes; one call if a call is longer.
    """

    half_width: float = 0.02
    max_rounds: int = 64
    max_s: float = 2.0
    block_s: float = 0.05


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


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()  # for good: to thaw would write to every object, and copy what a fork shares
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _block(side: Timed, calls: int, synchronize: Callable[[], None]) -> float:
    """Seconds per call of one block."""
    side.restore()
    call = side.call
    with side.context():
        synchronize()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        synchronize()
        end = time.perf_counter_ns()
    return max(1, end - begin) / 1e9 / calls


def _calibrate(side: Timed, synchronize: Callable[[], None], block_s: float) -> int:
    """How many calls make a block."""
    calls = 1
    while True:
        took = _block(side, calls, synchronize) * calls
        if took >= block_s / 2 or calls >= 2**20:
            return max(1, round(calls * block_s / took))
        calls = max(calls + 1, math.ceil(calls * min(10.0, block_s / took)))


def _settle(side: Timed, calls: int, synchronize: Callable[[], None], until: float) -> bool:
    """Run blocks until their times have no trend: the direction has changed four times.

    Returns:
        Whether that happened before the cap.
    """
    last, direction, turns = _block(side, calls, synchronize), 0, 0
    for _ in range(_WARM_BLOCKS):
        now = _block(side, calls, synchronize)
        new = (now > last) - (now < last)
        turns += new != 0 and direction != 0 and new != direction
        direction, last = new or direction, now
        if turns >= _TURNS:
            return True
        if time.monotonic() > until:
            break
    return False


def paired_blocks(
    eager: Timed,
    compiled: Timed,
    synchronize: Callable[[], None],
    limits: Limits,
    seed: int,
) -> Measurement:
    """Measure until the speed-up is known well enough; raw times come back, in seconds per call.

    Args:
        eager: the baseline; for an A/A run both sides are eager.
        compiled: the side under test; it must have been compiled already.
        synchronize: waits for the device.
        limits: when to stop.
        seed: of the order of blocks in each round.
    """
    sides = (eager, compiled)
    for side in sides:
        for _ in range(_WARM_CALLS):
            _block(side, 1, synchronize)
    with _no_garbage_collection():
        calls = [_calibrate(side, synchronize, limits.block_s) for side in sides]
        patience = time.monotonic() + 2 * limits.max_s
        steady = all(
            [_settle(s, n, synchronize, patience) for s, n in zip(sides, calls, strict=True)]
        )
        order = random.Random(seed)
        times: tuple[list[float], list[float]] = ([], [])
        begin = time.monotonic()
        while True:
            for index in order.sample((0, 1), 2):
                times[index].append(_block(sides[index], calls[index], synchronize))
            rounds = len(times[0])
            if rounds < _FIRST_LOOK or (rounds - _FIRST_LOOK) % _LOOK_EVERY:
                continue
            logs = [math.log(e / c) for e, c in zip(*times, strict=True)]
            interval = signed_rank_interval(logs)
            narrow = (interval.high - interval.low) / 2 <= limits.half_width
            if narrow or rounds >= limits.max_rounds or time.monotonic() - begin > limits.max_s:
                break
    doubts = {"noisy": not narrow, "not_steady": not steady}
    flags = tuple(name for name, doubtful in doubts.items() if doubtful)
    return Measurement(tuple(times[0]), tuple(times[1]), (calls[0], calls[1]), flags)
