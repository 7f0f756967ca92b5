"""Time two callables against each other, in pairs.

Eager and compiled blocks alternate in one process in random order, so that clocks, load and heat
touch both alike. A block is 20 to 50 ms of calls between two synchronizations, after as many calls
as the other side slows (:mod:`autocompile.trial.blocks`). Rounds go on until
the interval of the speed-up is narrow enough: its width decides, not its significance, which
repeated looks would inflate (about 14 % false alarms for five looks at p < 0.05). Rounds in which
other processes or heat slowed this one are made again; they stay in the raw data, marked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autocompile.record import ENOUGH_ROUNDS, SELDOM, Measurement
from autocompile.stats import median, signed_rank_interval
from autocompile.trial.blocks import (
    Timed,
    block,
    calibrate,
    carried_over,
    fill,
    lead_of,
    settle,
    shorter,
)
from autocompile.trial.rounds import Rounds
from autocompile.trial.strain import Strain

__all__ = ["Limits", "Timed", "paired_blocks", "watched_blocks"]

_LOOK_EVERY = 4
_LOOK_SHARE = 16  # of the rounds there are: a look at many takes long
_LATELY, _MANY = 6, 4  # so many disturbed ones of the last
_ALONE_BLOCKS, _ALONE_BLOCK_S, _ALONE_TRIES = 7, 0.02, 3
_DRIFT = 0.05  # by which eager may differ from itself before a measurement is made again
_GAP_S = 0.01  # by then OpenMP's and onnxruntime's threads have stopped to spin
_WARM_CALLS = 3  # CUDA graphs: warm-up, record, replay
_LONG_CALL_S = 1.0  # such a call needs no warming beside those that verification has made


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Attributes:
        half_width: stop when the speed-up is known to this relative half-width.
        max_rounds: or after so many rounds that nothing disturbed.
        max_s: or after so many seconds of such rounds, once eight are there.
        block_s: about how long a block takes; one call if a call is longer.
        gap_s: how long to wait before each block, for threads of the other side to fall asleep.
        patience: how many times ``max_s`` it may take while rounds have to be made again; once,
            where not one was calm by then.
    """

    half_width: float = 0.02
    max_rounds: int = 64
    max_s: float = 2.0
    block_s: float = 0.05
    gap_s: float = 0.0
    patience: float = 3.0


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


def paired_blocks(
    eager: Timed,
    compiled: Timed,
    synchronize: Callable[[], None],
    limits: Limits,
    seed: int,
    strain: Strain | None = None,
) -> Measurement:
    """Measure until the speed-up is known well enough; raw times come back, in seconds per call.

    Args:
        eager: the baseline; for an A/A run both sides are eager.
        compiled: the side under test; it must have been compiled already.
        synchronize: waits for the device.
        limits: when to stop.
        seed: of the order of blocks in each round.
        strain: knows which rounds were disturbed; None: none was.
    """
    sides = (eager, compiled)
    is_long = min(block(side, 1, synchronize) for side in sides) > _LONG_CALL_S
    for side in sides if not is_long else ():
        for _ in range(_WARM_CALLS - 1):
            block(side, 1, synchronize)
    with _no_garbage_collection():
        calls, steady = [1, 1], True
        if not is_long:
            patience_s = limits.max_s / 2
            calls = [
                calibrate(side, synchronize, limits.block_s, strain, patience_s) for side in sides
            ]
            patience = time.monotonic() + 2 * limits.max_s
            steady = all(
                [settle(s, n, synchronize, patience) for s, n in zip(sides, calls, strict=True)]
            )
        carried: list[list[float]] = [[], []]
        if not is_long:
            carried = carried_over(sides, calls, synchronize, limits.block_s, limits.gap_s)
        leads = [lead_of(seen, n) for seen, n in zip(carried, calls, strict=True)]
        order, shortened, is_short = random.Random(seed), list[int](), False
        rounds = Rounds(strain)
        no_hope = time.monotonic() + limits.max_s
        last_try = no_hope + (limits.patience - 1) * limits.max_s
        while True:
            with rounds.one():
                for index in order.sample((0, 1), 2):
                    if limits.gap_s:
                        time.sleep(limits.gap_s)
                    seconds = block(sides[index], calls[index], synchronize, leads[index])
                    rounds.times[index].append(seconds)
            if not is_short and rounds.disturbed_lately(_LATELY) >= _MANY:
                before, is_short = calls, True
                calls, leads, shrink = shorter(calls, carried, limits.block_s)
                shortened = [len(rounds.times[0]), *before] if shrink != 1 else []
                limits = dataclasses.replace(limits, max_rounds=round(limits.max_rounds * shrink))
            clean = len(rounds.logs)
            # Where nothing was calm so far, another process at another time is the better try.
            late = time.monotonic() > (last_try if clean else no_hope)
            # Of calls so long that there was time for no more, disturbed ones are made again.
            most = 2 * ENOUGH_ROUNDS if 0 < clean < ENOUGH_ROUNDS and not is_long else ENOUGH_ROUNDS
            if late and len(rounds.times[0]) >= most:
                break
            is_a_look = rounds.last_is_clean and clean % _look_every(clean) == 0
            if is_a_look and _is_enough(rounds.logs, rounds.clean_s, limits):
                break
    logs, times = rounds.logs, rounds.times
    are_few = len(logs) < max(ENOUGH_ROUNDS, SELDOM * len(times[0]))
    doubts = {
        "noisy": not _is_narrow(logs, limits),
        "not_steady": not steady,
        "contended": are_few,
        "throttled": strain is not None and strain.throttled and are_few,
    }
    flags = tuple(name for name, doubtful in doubts.items() if doubtful)
    return Measurement(
        eager_s=tuple(times[0]),
        compiled_s=tuple(times[1]),
        calls=(calls[0], calls[1]),
        flags=flags,
        disturbed=rounds.disturbed,
        shortened=tuple(shortened),
        leads=(leads[0], leads[1]),
    )


def _look_every(clean: int) -> int:
    """Few rounds apart at first, a share of them later."""
    return max(_LOOK_EVERY, _LOOK_EVERY * (clean // (_LOOK_EVERY * _LOOK_SHARE)))


def _is_enough(logs: list[float], clean_s: float, limits: Limits) -> bool:
    """Whether no more rounds are needed, or wanted."""
    if len(logs) < ENOUGH_ROUNDS:
        return False
    is_long = clean_s > limits.max_s or len(logs) >= limits.max_rounds
    return is_long or _is_narrow(logs, limits)


def _is_narrow(logs: list[float], limits: Limits) -> bool:
    """Whether the speed-up is known to the half-width that was asked for."""
    if len(logs) < ENOUGH_ROUNDS:
        return False
    interval = signed_rank_interval(logs)
    return (interval.high - interval.low) / 2 <= limits.half_width


def watched_blocks(
    eager: Timed,
    compiled: Timed,
    synchronize: Callable[[], None],
    limits: Limits,
    seed: int,
    strain: Strain,
) -> tuple[Measurement, list[str]]:
    """:func:`paired_blocks` with a canary: eager alone, before and after.

    If the machine has changed meanwhile, or if eager is slower beside the other side than alone
    (a thread pool that spins after its call takes eager's cores), all is measured once more, in
    the second case with gaps between the blocks.

    Returns:
        The measurement, and sentences for the user.
    """

    if block(eager, 1, synchronize) > _LONG_CALL_S:  # no thread goes on spinning for so long
        return paired_blocks(eager, compiled, synchronize, limits, seed, strain), []

    def alone() -> float | None:
        block_s = min(limits.block_s, _ALONE_BLOCK_S)
        tries = (_alone(eager, synchronize, block_s, strain) for _ in range(_ALONE_TRIES))
        return next((t for t in tries if t is not None), None)

    def slowing(found: Measurement, *around: float | None) -> float:
        known = [t for t in around if t is not None]
        if len(known) < 2:
            return 0.0
        # Others slow some rounds, what the other side does slows them all.
        is_mixed = "contended" in found.flags
        fast_s = sorted(found.eager_s)[len(found.eager_s) // 4] if is_mixed else found.eager_call_s
        return fast_s / median(known) - 1

    before = alone()
    found = paired_blocks(eager, compiled, synchronize, limits, seed, strain)
    after = alone()
    has_drifted = before and after and abs(math.log(after / before)) > _DRIFT
    slowed = slowing(found, before, after)
    if not has_drifted and slowed <= _DRIFT:
        return found, []
    calmer = dataclasses.replace(limits, gap_s=_GAP_S if slowed > _DRIFT else 0.0)
    found = paired_blocks(eager, compiled, synchronize, calmer, seed + 1, strain)
    slowed = slowing(found, after, alone())
    if slowed <= _DRIFT:
        return found, []
    note = f"eager runs {slowed:.0%} slower beside this setting than alone"
    return dataclasses.replace(found, flags=(*found.flags, "eager_slowed")), [note]


def _alone(
    side: Timed, synchronize: Callable[[], None], block_s: float, strain: Strain
) -> float | None:
    """Median seconds of a call with nothing beside it; None if others disturbed it."""
    time.sleep(_GAP_S)
    mark = strain.mark()
    calls = fill(side, synchronize, block_s)
    times = [block(side, calls, synchronize) for _ in range(_ALONE_BLOCKS)]
    return None if strain.disturbed_since(mark) else median(times)
