"""Times several callables in alternating blocks.

Each round times one block of each side in random order in one process, so that clock speed, load
and heat affect all equally. A block is about 20 ms of calls between two synchronizations, after
untimed calls (:mod:`autocompile.trial.measure.blocks`). All raw times are kept. A search stops
timing a setting that is clearly too slow (:func:`screen`); a race times all sides for the same
number of rounds (:func:`side_by_side`).
"""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence

from autocompile.estimate.intervals import Interval, median, speedup
from autocompile.protocol.requests import TimingLimits
from autocompile.store.record import Measurement
from autocompile.trial.measure.blocks import Timed, block, carried_over, fill, lead_of

__all__ = ["Rounds", "Timed", "TimingLimits", "screen", "side_by_side"]

_LOOK_EVERY = 4
_FEW = 3  # rounds of very long calls
_WARM_CALLS = 3  # CUDA graphs: warm-up, record, replay
_LONG_CALL_S = 1.0  # such a call needs no warm-up beyond the calls of verification
_NEAR = 0.97  # of the best speed-up; a setting below it is too slow
_ALONE_BLOCKS = 5
_GAP_S = 0.01  # by then threads of OpenMP and onnxruntime have stopped busy-waiting
_SLOWED = 1.25  # next to a side that keeps a core busy, eager takes 1.5 times as long


class Rounds:
    """Sides ready to be timed: warmed up, with block size and lead.

    Attributes:
        times: by side, seconds per call of each round's block.
        calls: by side, calls of a block.
        leads: by side, untimed calls before a block.
    """

    def __init__(
        self, sides: Sequence[Timed], synchronize: Callable[[], None], block_s: float, seed: int
    ) -> None:
        self._sides, self._synchronize = sides, synchronize
        self._random = random.Random(seed)
        self.times: list[list[float]] = [[] for _ in sides]
        self.calls, self.leads = [1] * len(sides), [0] * len(sides)
        is_long = [block(side, 1, synchronize) > _LONG_CALL_S for side in sides]
        if all(is_long):
            return
        short = [  # a second try, in case the first call was interrupted
            index
            for index, side in enumerate(sides)
            if not is_long[index] or block(side, 1, synchronize) <= _LONG_CALL_S
        ]
        for index in short:
            for _ in range(_WARM_CALLS - 1):
                block(sides[index], 1, synchronize)
        for _ in range(2):  # the larger of two tries: a wait for a core can exceed a block
            for index in short:
                seems = fill(sides[index], synchronize, block_s)
                self.calls[index] = max(self.calls[index], seems)
        carried = carried_over(sides, self.calls, synchronize, block_s)
        self.leads = [lead_of(seen, n) for seen, n in zip(carried, self.calls, strict=True)]

    @property
    def count(self) -> int:
        """Number of rounds so far."""
        return len(self.times[0])

    def one(self) -> None:
        """Time one more block of each side."""
        for index in self._random.sample(range(len(self._sides)), len(self._sides)):
            seconds = block(
                self._sides[index], self.calls[index], self._synchronize, self.leads[index]
            )
            self.times[index].append(seconds)

    def measurement(self, index: int, flags: tuple[str, ...] = ()) -> Measurement:
        """The times of a side and of the first one."""
        return Measurement(
            eager_s=tuple(self.times[0]),
            compiled_s=tuple(self.times[index]),
            calls=(self.calls[0], self.calls[index]),
            leads=(self.leads[0], self.leads[index]),
            flags=flags,
        )


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector inside the context; freezes the current objects for good."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()  # not undone: unfreeze writes to every object, which copies pages shared by forks
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def screen(
    eager: Timed, other: Timed, synchronize: Callable[[], None], limits: TimingLimits, seed: int
) -> tuple[Measurement, list[str]]:
    """Time a setting against eager until its speed-up is known well enough or clearly too low.

    Args:
        eager: the baseline; in an A/A run both sides are eager.
        other: the side under test, already compiled.
        synchronize: waits for the device.
        limits: when to stop.
        seed: for the order of blocks in each round.

    Returns:
        The raw times, and sentences for the user.
    """
    with no_garbage_collection():
        alone_s = _alone(eager, synchronize, limits.block_s)
        rounds = Rounds((eager, other), synchronize, limits.block_s, seed)
        began = time.monotonic()
        while not _is_enough(rounds, time.monotonic() - began, limits):
            rounds.one()
        found = rounds.measurement(1)
        if found.eager_call_s <= _SLOWED * alone_s:
            return found, []
        alone_s = max(alone_s, _alone(eager, synchronize, limits.block_s))
    if found.eager_call_s <= _SLOWED * alone_s:
        return found, []
    slowed = found.eager_call_s / alone_s - 1
    note = f"eager runs {slowed:.0%} slower next to this setting than alone"
    return rounds.measurement(1, ("eager_slowed",)), [note]


def _is_enough(rounds: Rounds, spent_s: float, limits: TimingLimits) -> bool:
    if rounds.count < limits.rounds:
        return rounds.count >= _FEW and spent_s > limits.front_s
    if rounds.count % _LOOK_EVERY and spent_s < limits.front_s:
        return False
    known = speedup(*rounds.times)
    is_near = known.value > _NEAR * limits.beat
    return _is_narrow(known, limits) or spent_s > (limits.front_s if is_near else limits.max_s)


def _is_narrow(known: Interval, limits: TimingLimits) -> bool:
    return known.half_width <= limits.half_width or known.high < _NEAR * limits.beat


def _alone(side: Timed, synchronize: Callable[[], None], block_s: float) -> float:
    """Median seconds of a call without other sides."""
    time.sleep(_GAP_S)
    if (took_s := block(side, 1, synchronize)) > _LONG_CALL_S:
        return took_s
    calls = fill(side, synchronize, block_s)
    if block_s < (took_s := block(side, calls, synchronize) * calls) and calls == 1:
        return took_s  # a busy-wait does not matter for a call this long
    return median([block(side, calls, synchronize) for _ in range(_ALONE_BLOCKS)])


def side_by_side(
    rounds: Rounds,
    most: int,
    max_s: float,
    turn: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Time ``most`` rounds, or as many as fit in ``max_s`` seconds, at least three.

    Args:
        rounds: the sides.
        most: number of rounds.
        max_s: seconds of rounds; waiting for a turn does not count.
        turn: entered around each round.
    """
    spent_s = 0.0
    while rounds.count < most and (rounds.count < _FEW or spent_s <= max_s):
        with turn():
            began = time.monotonic()
            rounds.one()
            spent_s += time.monotonic() - began
