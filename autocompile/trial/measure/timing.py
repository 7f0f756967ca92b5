"""Times several callables in alternating blocks, calls that compile, and a reference workload.

What is covered:

- the steady time of a call. Each round times one block of each side in one process, so that clock
  speed, load and heat affect all equally. A block is about 20 ms of calls, without Python's garbage
  collector. A search stops timing a setting that is clearly too slow (:func:`screen`); a race times
  all sides for as many rounds (:func:`side_by_side`);
- on a GPU, calls as in a long loop, in which the CPU queues the next one while the GPU is at work
  (:class:`StreamTimer`);
- what a side costs the next one: its threads busy-wait for about ten milliseconds after their last
  call, and the caches hold its weights. After eager mode, OpenVINO's first call took 2.5 times as
  long as its twentieth (a CNN on two cores). So the loss of the first calls is measured,
  and if it matters a block's clock starts after them;
- compile time: the first calls, less a steady one and the wait for other trials.

What is not covered: what the user's program does between calls, such as loading data or copying it
to the device; how processes differ, for which a race is repeated in several; calls that compile
again when an input changes; on a GPU the state of the host, and the waits of a program that reads
each result before its next call.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch

from autocompile.estimate.intervals import median, speedup
from autocompile.protocol.requests import TimingLimits
from autocompile.runtime.kept_memory import keep_freed_memory
from autocompile.runtime.ranks import Ranks, here
from autocompile.store.record import Measurement
from autocompile.trial.model.calls import Calls, shape_of
from autocompile.trial.model.sides import Side

_SIZE, _PRODUCTS, _SUMS = 128, 12, 150  # of the reference work
_LOOK_EVERY = 4  # rounds: a look after each would stop on noise more often
_FEW = 3  # rounds of very long calls
_WARM_CALLS = 3  # CUDA graphs: warm-up, record, replay
# Such a call needs no warm-up beyond the calls of verification, and a busy-wait does not matter.
_LONG_CALL_S = 0.2
_NEAR = 0.97  # of the best speed-up; a setting below it is too slow
_ALONE_BLOCKS = 5
_GAP_S = 0.01  # by then threads of OpenMP and onnxruntime have stopped busy-waiting
_SLOWED = 1.25  # next to a side that keeps a core busy, eager takes 1.5 times as long
_LOOK_S, _LOOKS, _LOOK_CALLS = 0.05, 3, 4  # of calls: several busy-waits long
_FEW_CALLS, _MANY_CALLS = 2, 1000  # for page faults
_LOST = 0.01  # accepted loss by the first calls, as a share of a block's time
_OWED_S = 5e-5  # to wait for a device that has ended takes less
_OWED = 0.01  # of a call: less makes no difference
_TRIES = 3  # of such a wait
_SLOWER = 1.03  # smaller differences between calls are noise
_PASSES = 3  # of a workload, to tell its calls apart: for the report, and for limits


class Timer:
    """Times calls between two synchronizations, which is all that a CPU needs."""

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self.synchronize = synchronize  # waits for the device to finish
        self.on_any_rank: Callable[[bool], bool] = bool  # whether something is so

    def seconds(self, call: Callable[[], Any], calls: int) -> float:
        """Seconds of so many calls together."""
        self.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        self.synchronize()
        return max(1, time.perf_counter_ns() - begin) / 1e9

    def between_synchronizations(self) -> Timer:
        """The plain form of it, for the same device."""
        return Timer(self.synchronize)

    def agreed(self, seconds: float) -> float:
        """Of something that each rank has timed, what all decide by."""
        return seconds

    @property
    def apart(self) -> float:
        """By what share of the fastest rank's time the slowest takes longer."""
        return 0.0

    def misses(self, side: Timed) -> bool:
        """Whether a call leaves work to the device that this timer does not see."""
        return False

    def calls(self, fitting: float) -> int:
        """The number of calls in a block that has room for ``fitting``."""
        return max(1, round(fitting))

    def lead(self, calls: int) -> int:
        """The number of untimed calls that a block needs, whatever ran before."""
        return 0


class StreamTimer(Timer):
    """Times calls on a GPU between two events of its stream, after some that are not timed.

    So they take what they take in a long loop, in which the host queues a call while the GPU is at
    work. Between two synchronizations the first call finds an empty queue and the last one leaves
    it empty: steps of 13.1 ms, timed one by one, took 14.1 (studies/gpu).
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(partial(torch.cuda.synchronize, device))
        self._device = device

    def seconds(self, call: Callable[[], Any], calls: int) -> float:
        stream = torch.cuda.current_stream(self._device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record(stream)
        for _ in range(calls):
            call()
        end.record(stream)
        self.synchronize()
        return max(1e-9, float(begin.elapsed_time(end)) / 1e3)

    def misses(self, side: Timed) -> bool:
        """Whether other streams are at work when ours, which did not wait for them, has ended.

        Where other programs use the GPU, waiting for nothing takes as long as for some work. After a
        call that has used NCCL it takes longer than after none (two H200).
        """

        def wait_s() -> float:
            began_ns = time.perf_counter_ns()
            self.synchronize()
            return (time.perf_counter_ns() - began_ns) / 1e9

        def owes() -> bool:
            side.restore()
            with side.context():
                self.synchronize()
                began_ns = time.perf_counter_ns()
                side.call()
                torch.cuda.current_stream(self._device).synchronize()
                call_s = (time.perf_counter_ns() - began_ns) / 1e9
                return wait_s() > nothing_s + max(_OWED_S, _OWED * call_s)

        self.synchronize()
        nothing_s = min(wait_s() for _ in range(_TRIES))
        return all(self.on_any_rank(owes()) for _ in range(_TRIES))

    def calls(self, fitting: float) -> int:
        return max(3, round(fitting)) if fitting >= 1 else 1

    def lead(self, calls: int) -> int:
        return min(2, calls)


class RanksTimer(Timer):
    """Times calls that all ranks make together: the slowest rank's seconds, the same for all."""

    def __init__(self, timer: Timer, ranks: Ranks) -> None:
        super().__init__(timer.synchronize)
        self._timer, self._ranks = timer, ranks
        timer.on_any_rank = lambda is_so: ranks.agree(is_so, any)
        self._apart: list[float] = []

    def seconds(self, call: Callable[[], Any], calls: int) -> float:
        self.synchronize()
        self._ranks.wait()
        own_s = self._timer.seconds(call, calls)
        slowest_s = self.agreed(own_s)
        self._apart.append(slowest_s / self._ranks.agree(own_s, min) - 1)
        return slowest_s

    def misses(self, side: Timed) -> bool:
        return self._timer.misses(side)

    @property
    def apart(self) -> float:
        return median(self._apart) if self._apart else 0.0

    def agreed(self, seconds: float) -> float:
        return self._ranks.agree(seconds, max)

    def between_synchronizations(self) -> Timer:
        return RanksTimer(self._timer.between_synchronizations(), self._ranks)

    def calls(self, fitting: float) -> int:
        return self._timer.calls(fitting)

    def lead(self, calls: int) -> int:
        return self._timer.lead(calls)


def timer_of(device: torch.device) -> Timer:
    """For the calls of a target on this device, which several ranks make together."""
    timer = StreamTimer(device) if device.type == "cuda" else Timer()
    return RanksTimer(timer, here()) if here().are_several else timer


Turn = Callable[[], contextlib.AbstractContextManager[None]]
"""Makes the context of a round."""


@dataclass(frozen=True)
class Timed:
    """One side of a comparison: its call, and what surrounds each block of calls, not timed."""

    call: Callable[[], Any]
    restore: Callable[[], None]
    context: Callable[[], contextlib.AbstractContextManager[Any]]
    calls: int = 1  # of the model that one ``call`` makes: those of a workload


def block(side: Timed, calls: int, timer: Timer, lead: int = 0) -> float:
    """Seconds per call of one block, after ``lead`` untimed calls."""
    side.restore()
    with side.context():
        timer.synchronize()
        for _ in range(lead):
            side.call()
        return timer.seconds(side.call, calls) / calls


def _one_by_one(calls: Sequence[Callable[[], Any]], timer: Timer) -> list[float]:
    """Seconds of each call, between two synchronizations."""
    return [timer.between_synchronizations().seconds(call, 1) for call in calls]


def fill(side: Timed, timer: Timer, block_s: float) -> int:
    """The number of calls of a block that takes about ``block_s``."""
    calls = 1
    while True:
        took = block(side, calls, timer) * calls
        if took >= block_s / 2 or calls >= 2**20:
            return timer.calls(calls * block_s / took)
        calls = max(calls + 1, math.ceil(calls * min(10.0, block_s / took)))


def carried_over(
    sides: Sequence[Timed], calls: Sequence[int], timer: Timer, block_s: float
) -> list[list[float]]:
    """By side, seconds of its first, second, ... call after another side ran, for about 50 ms.

    Each is the minimum of three runs, since carry-over slows all of them and noise does not; of one
    run if that shows no loss. Empty if a call is too long to lose much.
    """
    counts = [max(_LOOK_CALLS, math.ceil(n * _LOOK_S / block_s)) for n in calls]
    looks: list[list[list[float]]] = [[] for _ in sides]
    for look in range(_LOOKS):
        for side, count, seen in zip(sides, counts, looks, strict=True):
            seen.append(_each(side, count, timer))
        leads = [lead_of(seen[0], n) for seen, n in zip(looks, calls, strict=True)]
        if look == 0 and not any(leads):
            break
    return [[min(times) for times in zip(*seen, strict=False)] for seen in looks]


def _each(side: Timed, calls: int, timer: Timer) -> list[float]:
    """Seconds of each call; empty if the first is longer than ``_LONG_CALL_S``."""
    side.restore()
    times = []
    with side.context():
        for _ in range(calls):
            times.append(timer.between_synchronizations().seconds(side.call, 1))
            if times[0] > _LONG_CALL_S:
                return []
    return times


def lead_of(times: Sequence[float], calls: int) -> int:
    """How many first calls to leave untimed, so that the rest lose at most 1 % of a block's time.

    The later half of ``times``, of the calls after the other side's, gives the steady time.
    """
    middle = len(times) // 2
    usual, lost = fmean(times[middle:]) if times else 0.0, 0.0
    for number in range(middle - 1, -1, -1):
        lost += max(0.0, times[number] - _SLOWER * usual)
        if lost > _LOST * usual * calls:
            return number + 1
    return 0


class Rounds:
    """Sides ready to be timed: warmed up, with block size and lead.

    Attributes, all by side: ``times`` are the seconds per call of each round's block, ``calls``
    those of a block, ``leads`` the untimed calls before it.

    Raises:
        ValueError: sides whose ``call`` makes different numbers of calls of the model, whose times
            say nothing about each other.
    """

    def __init__(
        self, sides: Sequence[Timed], timer: Timer, block_s: float, seed: int
    ) -> None:
        counts = [side.calls for side in sides]
        if len(set(counts)) > 1:
            raise ValueError(f"the sides to time make {counts} calls at once")
        self._flags: tuple[str, ...] = ()
        if any(timer.misses(side) for side in sides):
            timer = timer.between_synchronizations()
            self._flags = ("between_synchronizations",)
        self.timer = timer
        self._sides = sides
        self._random = random.Random(seed)
        # The order of the last round backwards, if it is to come.
        self._mirrored: list[int] = []
        self.times: list[list[float]] = [[] for _ in sides]
        self.calls = [1] * len(sides)
        self.leads = [timer.lead(1)] * len(sides)
        self._pass_s = [math.inf] * len(sides)
        # A block of a side with long calls is one call, before which nothing needs to run.
        if short := self._warm_up():
            self._size_blocks(short, block_s)
            self._choose_leads(block_s)

    def _warm_up(self) -> list[int]:
        """Call each side a few times; returns the sides whose calls are short."""
        every = range(len(self._sides))
        long = [index for index in every if self._once_s(index) > _LONG_CALL_S]
        if len(long) == len(every):
            return []
        # A second time, since the first call may have been interrupted.
        long = [index for index in long if self._once_s(index) > _LONG_CALL_S]
        short = [index for index in every if index not in long]
        for index in short:
            for _ in range(_WARM_CALLS - 1):
                self._once_s(index)
        return short

    def _once_s(self, index: int) -> float:
        """Seconds of one call of a side, the shortest of which is kept."""
        took_s = block(self._sides[index], 1, self.timer)
        self._pass_s[index] = min(self._pass_s[index], took_s)
        return took_s

    def _size_blocks(self, short: Sequence[int], block_s: float) -> None:
        """Choose how many calls a block has, of sides with short calls."""
        # The larger of two tries: a wait for a core can exceed a block.
        for _ in range(2):
            for index in short:
                seems = fill(self._sides[index], self.timer, block_s)
                self.calls[index] = max(self.calls[index], seems)

    def _choose_leads(self, block_s: float) -> None:
        """Choose how many calls go before each block, untimed, for what the last side left."""
        carried = carried_over(self._sides, self.calls, self.timer, block_s)
        for index, (seen, calls) in enumerate(zip(carried, self.calls, strict=True)):
            self.leads[index] = lead_of(seen, calls) + self.timer.lead(calls)

    @property
    def count(self) -> int:
        return len(self.times[0])

    def one(self) -> Iterator[tuple[list[float], Timed, int, int]]:
        """The blocks of one more round: in a random order, then in the same one backwards.

        So a linear drift of the machine cancels over each pair of rounds of three sides or more.
        Each block is a list for its seconds per call, a side, its calls and its lead.
        """
        if self._mirrored:
            order, self._mirrored = self._mirrored, []
        else:
            every = range(len(self._sides))
            order = self._random.sample(every, len(every))
            # Of two sides each would follow itself too often, and show too little of what the
            # other one costs it.
            self._mirrored = order[::-1] if len(order) > 2 else []
        for index in order:
            yield (
                self.times[index],
                self._sides[index],
                self.calls[index],
                self.leads[index],
            )

    def measurement(self, index: int, flags: tuple[str, ...] = ()) -> Measurement:
        return Measurement(
            eager_s=tuple(self.times[0]),
            compiled_s=tuple(self.times[index]),
            calls=(self.calls[0], self.calls[index]),
            flags=(*self._flags, *flags),
            leads=(self.leads[0], self.leads[index]),
            pass_s=self._pass_s[index] if self.timer.lead(1) else None,
        )


def cost_of_giving_back(eager: Timed) -> dict[str, float]:
    """What calls on a CPU take while glibc gives freed memory back; from then on it is kept.

    ``times`` as long as with memory kept, and the page ``faults`` of a call; empty for long calls.
    """
    for _ in range(2):  # the first sets things up
        begin = time.perf_counter()
        with eager.context():
            eager.call()
        if (seconds := time.perf_counter() - begin) <= _LONG_CALL_S:
            break
    if seconds > _LONG_CALL_S:
        keep_freed_memory()
        return {}
    given_back_s, faults = _with_page_faults(eager)
    keep_freed_memory()
    kept_s, _ = _with_page_faults(eager)
    return {"times": given_back_s / kept_s, "faults": faults}


def _with_page_faults(side: Timed) -> tuple[float, float]:
    """Median seconds and page faults of some calls, after one that comes up to them."""
    side.restore()
    times: list[float] = []
    with side.context():
        side.call()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        while len(times) < _FEW_CALLS or (
            len(times) < _MANY_CALLS and sum(times) < _LOOK_S
        ):
            begin = time.perf_counter()
            side.call()
            times.append(time.perf_counter() - begin)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return median(times), (after - before) / len(times)


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
    eager: Timed,
    other: Timed,
    timer: Timer,
    limits: TimingLimits,
    seed: int,
    turn: Turn = contextlib.nullcontext,
) -> tuple[Measurement, list[str]]:
    """Time a setting against eager, and see whether it slows eager down; notes say so."""
    with no_garbage_collection():
        without_s = alone_s(eager, timer, limits.block_s)
        rounds = Rounds((eager, other), timer, limits.block_s, seed)
        side_by_side(rounds, limits, turn)
        measurement = rounds.measurement(1)
        # Long calls are timed one by one, and a few differ by chance: all of them have to be slower.
        is_long = without_s > limits.block_s
        beside_s = min(rounds.times[0]) if is_long else measurement.eager_call_s
        if beside_s > _SLOWED * without_s:  # or the machine got slower
            without_s = max(without_s, alone_s(eager, rounds.timer, limits.block_s))
    if beside_s <= _SLOWED * without_s:
        return measurement, []
    slowed = beside_s / without_s - 1
    note = (
        f"eager runs {slowed:.0%} slower next to this setting than alone, so its speed-up is not "
        "real, and it is not recommended"
    )
    return rounds.measurement(1, ("eager_slowed",)), [note]


def side_by_side(
    rounds: Rounds, limits: TimingLimits, turn: Turn = contextlib.nullcontext
) -> None:
    """Time rounds until all speed-ups are known well enough or the time is over, at least three.

    Waiting to enter ``turn``, the context of each round, does not count.
    """
    spent_s = 0.0
    while not _is_enough(rounds, spent_s, limits):
        with turn():
            began = time.monotonic()
            gc.collect()  # what a step leaves in cycles, such as its activations
            for times, side, calls, lead in rounds.one():
                times.append(block(side, calls, rounds.timer, lead))
            spent_s += rounds.timer.agreed(time.monotonic() - began)


def _is_enough(rounds: Rounds, spent_s: float, limits: TimingLimits) -> bool:
    if rounds.count == limits.most:
        return True
    if rounds.count < limits.rounds:
        return rounds.count >= _FEW and spent_s > limits.front_s
    if rounds.count % _LOOK_EVERY and spent_s < limits.front_s:
        return False
    eager_s, *others = rounds.times
    near = _NEAR * limits.beat
    known = [speedup(eager_s, each) for each in others]
    if all(k.half_width <= limits.half_width or k.high < near for k in known):
        return True
    is_near = any(k.value > near for k in known)
    return spent_s > (limits.front_s if is_near else limits.max_s)


def alone_s(side: Timed, timer: Timer, block_s: float) -> float:
    """Median seconds of a call without other sides."""
    time.sleep(_GAP_S)
    calls = 1
    if (took_s := block(side, 1, timer, timer.lead(1))) <= _LONG_CALL_S:
        calls = fill(side, timer, block_s)
        took_s = block(side, calls, timer, timer.lead(calls))
    if block_s < took_s:  # a busy-wait does not matter for a call this long
        return took_s
    return median(
        [block(side, calls, timer, timer.lead(calls)) for _ in range(_ALONE_BLOCKS)]
    )


def times_of_each_call(
    sides: Sequence[Side], timer: Timer, passes: int = _PASSES
) -> list[list[float]]:
    """By side, seconds of each call of a workload: the median of some passes that take turns."""
    seconds: list[list[list[float]]] = [[] for _ in sides]
    with no_garbage_collection():
        for _ in range(passes):
            for side, runs in zip(sides, seconds, strict=True):
                side.restore()
                with side.context():
                    runs.append(_one_by_one(side.each, timer))
    return [[median(call) for call in zip(*runs, strict=True)] for runs in seconds]


class FirstCalls:
    """Times each call of a side until :meth:`stop`, less the seconds ``waited`` meanwhile.

    Later calls may compile too: when an optimizer has momentum or gradients exist, the program
    differs, and CUDA graphs are recorded at the second call. A user's own step that was made anew,
    for a check, may compile again what a program compiles once: that call does not count, unless
    its shapes are new. ``window`` is that of the first call.
    """

    def __init__(self, side: Side, timer: Timer, waited: Callable[[], float]) -> None:
        self._side, self._call = side, side.call
        self._synchronize, self._waited = timer.synchronize, waited
        self._seconds: list[tuple[float, list[Any]]] = []  # of calls of which shapes
        self._remade = side.remade
        self.window: tuple[float, float] | None = None
        side.call = self._timed

    def stop(self) -> None:
        self._side.call = self._call

    def compile_s(
        self, steady_s: float, of_shape: Mapping[Any, float] | None = None
    ) -> float:
        """Seconds above the steady ones of a pass of the side's inputs, by ``shape_of`` if known."""
        each_s, known = steady_s / len(_shapes(self._side.inputs)), of_shape or {}
        steady = (
            sum(known.get(shape, each_s) for shape in shapes)
            for _, shapes in self._seconds
        )
        return sum(
            max(0.0, s - usual)
            for (s, _), usual in zip(self._seconds, steady, strict=True)
        )

    def _timed(self) -> Any:
        self._synchronize()
        waited_s, began = self._waited(), time.monotonic()
        output = self._call()
        self._synchronize()
        ended = time.monotonic()
        self.window = self.window or (began, ended)
        took_s = ended - began - (self._waited() - waited_s)
        shapes = _shapes(self._side.inputs)
        is_again = self._remade != self._side.remade
        self._remade = self._side.remade
        if not is_again or {*shapes} - {s for _, seen in self._seconds for s in seen}:
            self._seconds.append((took_s, shapes))
        return output


def _shapes(inputs: Any) -> list[Any]:
    return [
        shape_of(each) for each in (inputs if isinstance(inputs, Calls) else (inputs,))
    ]


class ReferenceWork:
    """A small fixed computation, timed next to each measurement.

    It detects a slow host (:mod:`autocompile.estimate`). Eager mode cannot serve for that,
    since it is part of the measured ratio. Nothing is done next to a GPU: there eager mode depends
    on the CPU's speed and a replayed graph does not, so no state of the CPU is the right one.
    """

    def __init__(self, device: torch.device) -> None:
        # Explicit, since the target may change the default dtype and device.
        square = torch.ones(_SIZE, _SIZE, dtype=torch.float32, device="cpu")
        self._left, self._right, self._out = square, square.clone(), square.clone()
        self._small = torch.zeros(4, dtype=torch.float32, device="cpu")
        self._is_idle = device.type != "cpu"
        self._seconds: list[float] = []
        self._once()

    def sample(self) -> None:
        if not self._is_idle:
            self._seconds.append(self._once())

    @property
    def median_s(self) -> float:
        return median(self._seconds) if self._seconds else 0.0

    def _once(self) -> float:
        with torch.no_grad():
            begin = time.perf_counter_ns()
            for _ in range(_PRODUCTS):
                torch.mm(self._left, self._right, out=self._out)
            for _ in range(_SUMS):
                self._small.add_(1.0)
            return (time.perf_counter_ns() - begin) / 1e9
