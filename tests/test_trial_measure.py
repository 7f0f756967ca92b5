"""paired_blocks(): two callables with known times give the ratio that they have."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from autocompile.trial.pace import Pace
from autocompile.trial.strain import Strain
from conftest import Clock

from autocompile.estimate.intervals import median
from autocompile.trial import strain as strain_module
from autocompile.trial.measure import Limits, Timed, paired_blocks, watched_blocks

QUICK = Limits(half_width=0.02, max_rounds=12, max_s=1.0)


def nothing() -> None:
    """No synchronization, no state."""


def timed(
    call: Callable[[], object],
    restore: Callable[[], None] = nothing,
    context: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Timed:
    return Timed(call, restore, context)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("measure", "blocks", "rounds"):
        monkeypatch.setattr(f"autocompile.trial.{module}.time", made)
    return made


class Busy:
    """Works on this core for a while, by the real clock, and knows how long it took in truth."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.took_s: list[float] = []

    def __call__(self) -> None:
        began = time.perf_counter()
        while time.perf_counter() < began + self.seconds:
            pass
        self.took_s.append(time.perf_counter() - began)


def test_times_by_the_real_clock_are_those_that_the_calls_took() -> None:
    """Whatever runs beside this test slows the calls: then it is the slower time that is true."""
    strain = Strain(torch.device("cpu"))
    eager, compiled = Busy(4e-3), Busy(2e-3)
    found = paired_blocks(
        timed(eager), timed(compiled), nothing, Limits(0.02, 24, 2.0, 0.02), 0, strain
    )
    for side, seconds, calls in zip(
        (eager, compiled), (found.eager_s, found.compiled_s), found.calls, strict=True
    ):
        took_s = side.took_s[-len(seconds) * calls :]
        assert min(seconds) > 0.99 * side.seconds
        assert sum(seconds) * calls >= sum(took_s), "what passes between two calls is in it too"
        blocks = [sum(took_s[i : i + calls]) / calls for i in range(0, len(took_s), calls)]
        assert median(seconds) == pytest.approx(median(blocks), rel=0.05)


def test_a_comparison_of_eager_with_itself_includes_one(clock: Clock) -> None:
    noise = random.Random(3)

    def call() -> None:
        clock.work(2e-3 * noise.lognormvariate(0, 0.02))

    every = [paired_blocks(timed(call), timed(call), nothing, QUICK, seed) for seed in range(40)]
    holds = [found.speedup.low <= 1.0 <= found.speedup.high for found in every]
    assert sum(holds) >= 34, "an interval of 95 % holds 38 of 40 times"
    assert not any(found.flags for found in every)


def test_drift_that_touches_both_sides_cancels(clock: Clock) -> None:
    """The machine gets half as fast on the way; the ratio stays what it is."""

    def slow_down(seconds: float) -> Callable[[], None]:
        return lambda: clock.work(seconds * (1 + clock.now_ns / 1e9 / 4))

    eager, compiled = timed(slow_down(3e-3)), timed(slow_down(2e-3))
    found = paired_blocks(eager, compiled, nothing, QUICK, 0)
    assert found.eager_s[-1] > 1.1 * found.eager_s[0]
    assert found.speedup.value == pytest.approx(1.5, rel=0.02)


def test_it_stops_at_the_first_look_where_the_interval_is_narrow(clock: Clock) -> None:
    sides = timed(lambda: clock.work(2e-3)), timed(lambda: clock.work(1e-3))
    found = paired_blocks(*sides, nothing, Limits(0.02, 64, 100.0), 0)
    assert len(found.eager_s) == 8
    assert found.speedup.value == pytest.approx(2.0)
    assert "noisy" not in found.flags


def test_noise_takes_more_rounds_until_the_interval_is_narrow(clock: Clock) -> None:
    noise = random.Random(1)

    def call() -> None:
        clock.work(0.06 * noise.lognormvariate(0, 0.03))

    found = paired_blocks(timed(call), timed(call), nothing, Limits(0.012, 200, 1e9), 0)
    rounds = len(found.eager_s)
    assert 8 < rounds < 200 and rounds % 4 == 0
    assert found.speedup.half_width <= 0.0121
    assert "noisy" not in found.flags


def test_what_stays_wide_ends_at_the_cap_and_is_flagged_noisy(clock: Clock) -> None:
    noise = random.Random(2)

    def call() -> None:
        clock.work(0.06 * noise.lognormvariate(0, 0.5))

    found = paired_blocks(timed(call), timed(call), nothing, Limits(0.01, 16, 1e9), 0)
    assert len(found.eager_s) == 16
    assert "noisy" in found.flags


def test_the_time_limit_counts_once_eight_rounds_are_there(clock: Clock) -> None:
    noise = random.Random(4)

    def call() -> None:
        clock.work(10 * noise.lognormvariate(0, 0.5))

    found = paired_blocks(timed(call), timed(call), nothing, Limits(0.01, 64, 1.0), 0)
    assert len(found.eager_s) == 8
    assert "noisy" in found.flags


class Contention:
    """Others take the cores while there are ``tries`` to come; each look is one."""

    def __init__(self, tries: int, what: str = "waited") -> None:
        self.left = tries
        self.what = what
        self.throttled = False

    def mark(self) -> Any:
        return object()

    def disturbed_since(self, mark: Any) -> frozenset[str]:
        self.left -= 1
        return frozenset({self.what} if self.left >= 0 else ())

    def slow(self, marks: Sequence[object]) -> list[bool]:
        return [self.what == "slow"] * len(marks)


@pytest.mark.parametrize("stalled", range(1, 12))
def test_a_stall_that_no_counter_shows_does_not_size_blocks(clock: Clock, stalled: int) -> None:
    calls = itertools.count(1)

    def call() -> None:
        clock.work(0.1 if next(calls) == stalled else 1e-4)

    steady = timed(lambda: clock.work(1e-4))
    found = paired_blocks(timed(call), steady, nothing, QUICK, 0)
    assert found.calls == (500, 500)


def test_a_machine_that_is_slow_all_the_time_sizes_blocks_at_once(clock: Clock) -> None:
    slow = Contention(1_000_000, "slow")

    def call() -> None:
        clock.work(1e-3)

    patient = dataclasses.replace(QUICK, max_s=0.5)
    found = paired_blocks(timed(call), timed(call), nothing, patient, 0, cast(Strain, slow))
    assert found.calls == (8, 8), "8 of 50 ms: it stays slow"
    assert 1_000_000 - slow.left == len(found.eager_s) + 2, "a look for each round and each side"


def test_a_wait_for_a_core_while_blocks_are_sized_does_not_size_them(clock: Clock) -> None:
    """A call that waited for 100 ms seemed to fill a block: then one call was all that it had."""
    others = Contention(tries=3)

    def call() -> None:
        clock.work(0.1 if others.left > 0 else 1e-4)

    found = paired_blocks(timed(call), timed(call), nothing, QUICK, 0, cast(Strain, others))
    assert found.calls == (500, 500)


def test_blocks_are_sized_as_well_as_can_be_where_others_never_stop(clock: Clock) -> None:
    others = Contention(tries=1_000_000)

    def call() -> None:
        clock.work(0.2 if clock.monotonic() % 2 < 1.3 else 1e-2)

    found = paired_blocks(timed(call), timed(call), nothing, QUICK, 0, cast(Strain, others))
    assert found.calls == (3, 3), "the short ones of 5"
    assert "contended" in found.flags
    assert clock.monotonic() < 20.0


def test_where_others_come_and_go_rounds_become_short_and_find_the_gaps(clock: Clock) -> None:
    """Somebody has the core for 20 of every 60 ms, and slows one side more than the other."""
    noise = random.Random(5)

    def side(seconds: float, slowed: float) -> Timed:
        def call() -> None:
            clock.work(seconds * noise.lognormvariate(0, 0.02) * (slowed if is_there() else 1))

        return timed(call)

    def is_there() -> bool:
        return clock.monotonic() % 0.06 < 0.02

    class Bursts:
        throttled = False

        def mark(self) -> float:
            return clock.monotonic()

        def disturbed_since(self, mark: float) -> frozenset[str]:
            steps = int((clock.monotonic() - mark) * 1e3) + 1
            seen = any((mark + step / 1e3) % 0.06 < 0.02 for step in range(steps))
            return frozenset({"stolen"} if seen else ())

        def slow(self, marks: Sequence[object]) -> list[bool]:
            return [False] * len(marks)

    limits = Limits(1e-9, 32, 2.0, 0.03, patience=3.0)
    sides = side(2e-4, 4.0), side(1e-4, 1.5)
    found = paired_blocks(*sides, nothing, limits, 0, cast(Strain, Bursts()))
    long = 2e-4 * found.calls[0] + 1e-4 * found.calls[1]
    assert 0.01 < long < 0.025, "of two blocks"
    assert len(found.eager_s) - len(found.disturbed) > 32, "more rounds, since they are shorter"
    assert found.speedup.value == pytest.approx(2.0, rel=0.01)
    assert "contended" not in found.flags


def test_calls_that_the_other_side_slows_are_not_timed(clock: Clock) -> None:
    """Threads of eager mode spin for 8 ms after its last call, and take a core from the other's."""
    last = {"eager": -1.0, "compiled": -1.0}

    def eager() -> None:
        clock.work(1e-3)
        last["eager"] = clock.monotonic()

    def compiled() -> None:
        clock.work(1e-3 if clock.monotonic() < last["eager"] + 8e-3 else 4e-4)

    limits = Limits(0.001, 12, 1.0, 0.02)
    found = paired_blocks(timed(eager), timed(compiled), nothing, limits, 0)
    assert found.speedup.value == pytest.approx(2.5, rel=0.01)
    assert found.leads == (0, 8)
    assert found.calls == (20, 50), "no shorter for that"


@pytest.mark.parametrize("usual", [2e-5, 1e-3, 0.018])
def test_where_nothing_is_carried_over_every_call_is_timed(clock: Clock, usual: float) -> None:
    def call() -> None:
        clock.work(usual)

    found = paired_blocks(timed(call), timed(call), nothing, QUICK, 0)
    assert found.leads == (0, 0)


def test_of_a_call_longer_than_a_block_the_first_is_left_out_too(clock: Clock) -> None:
    last = [""]

    def side(name: str) -> Timed:
        def call() -> None:
            clock.work(0.03 if last[0] == name else 0.036)
            last[0] = name

        return timed(call)

    found = paired_blocks(
        side("e"), side("c"), nothing, dataclasses.replace(QUICK, block_s=0.02), 0
    )
    assert found.calls == (1, 1) and found.leads == (1, 1)
    assert found.eager_call_s == pytest.approx(0.03)


def test_a_stall_in_one_look_is_not_taken_for_the_other_side(clock: Clock) -> None:
    """It comes in the first call after a change of sides, once."""
    stalls = iter([5e-3])
    last = [""]

    def side(name: str) -> Timed:
        def call() -> None:
            changed, last[0] = last[0] not in ("", name), name
            clock.work(1e-3 + (next(stalls, 0.0) if changed and clock.monotonic() > 0.6 else 0.0))

        return timed(call)

    found = paired_blocks(side("e"), side("c"), nothing, QUICK, 0)
    assert next(stalls, None) is None
    assert found.leads == (0, 0)


def test_a_short_block_follows_calls_that_nobody_times(clock: Clock) -> None:
    """The first call after the other side's finds cold caches, and takes three times as long."""
    last = [""]

    def side(name: str) -> Timed:
        def call() -> None:
            clock.work(1e-3 if last[0] == name else 3e-3)
            last[0] = name

        return timed(call)

    limits = dataclasses.replace(QUICK, max_s=0.5)
    never = cast(Strain, Contention(1_000_000))
    found = paired_blocks(side("e"), side("c"), nothing, limits, 0, never)
    assert found.calls == (8, 8)
    since, *before = found.shortened
    assert 4 <= since <= 6 and before == [50, 50]
    assert found.eager_s[-1] == pytest.approx(1e-3) and found.compiled_s[-1] == pytest.approx(1e-3)


@pytest.mark.parametrize(("call_s", "calls"), [(1e-3, (4, 20)), (8e-3, (1, 6))])
def test_short_blocks_leave_out_as_much_as_long_ones(
    clock: Clock, call_s: float, calls: tuple[int, int]
) -> None:
    """Eager mode's threads spin for 8 ms; blocks of fewer long calls would be no shorter."""
    last = [-1.0]

    def eager() -> None:
        clock.work(call_s * 2.5)
        last[0] = clock.monotonic()

    def compiled() -> None:
        clock.work(call_s if clock.monotonic() < last[0] + 8e-3 else call_s * 0.4)

    limits = Limits(0.001, 12, 0.5, 0.02)
    never = cast(Strain, Contention(1_000_000))
    found = paired_blocks(timed(eager), timed(compiled), nothing, limits, 0, never)
    assert found.leads[1] >= 8e-3 / call_s
    assert found.calls == calls
    assert found.speedup.value == pytest.approx(6.25, rel=0.01)


def test_long_calls_keep_their_blocks_whoever_disturbs(clock: Clock) -> None:
    def call() -> None:
        clock.work(0.03)

    never = cast(Strain, Contention(1_000_000))
    found = paired_blocks(timed(call), timed(call), nothing, QUICK, 0, never)
    assert found.calls == (2, 2)


def test_a_few_undisturbed_rounds_of_many_are_chance(clock: Clock) -> None:
    """One in thirty seems undisturbed, and shows another ratio than all the others."""
    rounds = itertools.count()
    neighbour: Any = Neighbour(lambda: next(rounds) % 30 > 0)
    eager = timed(lambda: clock.work(0.004 if neighbour.seen else 0.006))
    compiled = timed(lambda: clock.work(0.002))
    limits = Limits(1e-9, 1000, 2.0, 0.03, patience=6.0)
    found = paired_blocks(eager, compiled, nothing, limits, 0, neighbour)
    seemed = len(found.eager_s) - len(found.disturbed)
    assert 8 <= seemed < len(found.eager_s) / 20
    assert found.speedup.value == pytest.approx(2.0)
    assert "contended" in found.flags and not found.is_partly_sound


def test_where_nothing_is_calm_it_ends_sooner_than_where_something_is(clock: Clock) -> None:
    def call() -> None:
        clock.work(0.02)

    limits = Limits(1e-9, 10_000, 2.0, 0.02, patience=3.0)
    rounds = itertools.count()
    never: Any = Neighbour(lambda: True)
    seldom: Any = Neighbour(lambda: next(rounds) % 20 > 0)
    hopeless = paired_blocks(timed(call), timed(call), nothing, limits, 0, never)
    assert "contended" in hopeless.flags
    assert sum(hopeless.eager_s + hopeless.compiled_s) == pytest.approx(2.0, abs=0.1)
    some = paired_blocks(timed(call), timed(call), nothing, limits, 0, seldom)
    assert sum(some.eager_s + some.compiled_s) == pytest.approx(6.0, abs=0.1)


def test_a_side_that_never_settles_is_flagged(clock: Clock) -> None:
    """Each block takes longer than the one before: a trend without an end."""
    elapsed = [0]

    def slower_and_slower() -> None:
        elapsed[0] += 1
        clock.work(0.06 + 0.001 * elapsed[0])

    steady = timed(lambda: clock.work(0.06))
    found = paired_blocks(steady, timed(slower_and_slower), nothing, Limits(0.5, 8, 100.0), 0)
    assert "not_steady" in found.flags


def test_restore_is_called_before_every_block_and_outside_the_clock(clock: Clock) -> None:
    log: list[str] = []

    def restore() -> None:
        log.append("restore")
        clock.work(1.0)

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        log.append("enter")
        clock.work(1.0)
        yield
        clock.work(1.0)

    def call() -> None:
        log.append("call")
        clock.work(0.06)

    side = timed(call, restore, context)
    found = paired_blocks(side, side, nothing, Limits(0.02, 8, 1e9), 0)
    assert set(found.eager_s) == {0.06} and set(found.compiled_s) == {0.06}
    assert re.fullmatch("(restore enter( call)+ )+", " ".join((*log, "")))
    assert log[-3 * 16 :] == ["restore", "enter", "call"] * 16, "eight rounds"


def test_the_device_is_waited_for_inside_the_clock(clock: Clock) -> None:
    """A call that only queues its work takes as long as the work does."""
    queued = [0.0]

    def launch() -> None:
        queued[0] += 0.06

    def synchronize() -> None:
        clock.work(queued[0])
        queued[0] = 0.0

    found = paired_blocks(timed(launch), timed(launch), synchronize, QUICK, 0)
    assert found.eager_call_s == pytest.approx(0.06)


def test_each_round_has_one_block_of_each_side_in_random_order(clock: Clock) -> None:
    def order(seed: int) -> str:
        log: list[str] = []

        def side(name: str) -> Timed:
            def call() -> None:
                log.append(name)
                clock.work(0.06)

            return timed(call)

        found = paired_blocks(side("e"), side("c"), nothing, Limits(0.0, 24, 1e9), seed)
        return "".join(log[-2 * len(found.eager_s) :])

    seen = order(0)
    pairs = [seen[i : i + 2] for i in range(0, len(seen), 2)]
    assert set(pairs) == {"ec", "ce"}
    assert order(0) == seen != order(1)


@pytest.mark.parametrize(
    ("call_s", "calls"), [(1.0, 1), (0.2, 1), (0.06, 1), (0.01, 5), (0.001, 50), (1e-5, 5000)]
)
def test_a_block_lasts_about_fifty_milliseconds_or_one_call(
    clock: Clock, call_s: float, calls: int
) -> None:
    side = timed(lambda: clock.work(call_s))
    found = paired_blocks(side, side, nothing, Limits(0.02, 8, 1e9), 0)
    assert found.calls == (calls, calls)
    assert found.eager_call_s == pytest.approx(call_s)


def test_each_side_has_a_block_of_its_own_length(clock: Clock) -> None:
    sides = timed(lambda: clock.work(0.1)), timed(lambda: clock.work(0.005))
    found = paired_blocks(*sides, nothing, QUICK, 0)
    assert found.calls == (1, 10)
    assert found.speedup.value == pytest.approx(20.0)


def test_a_block_that_the_clock_cannot_see_is_no_division_by_zero(clock: Clock) -> None:
    """The clock stands still at first, as a coarse one does for a call that does nothing."""
    calls = [0]

    def call() -> None:
        calls[0] += 1
        clock.work(0.06 if calls[0] > 8 else 0.0)

    found = paired_blocks(timed(call), timed(call), nothing, QUICK, 0)
    assert found.eager_call_s == found.compiled_call_s == pytest.approx(0.06)


def test_no_garbage_is_collected_inside_a_round(clock: Clock) -> None:
    enabled = []

    def call() -> None:
        enabled.append(gc.isenabled())
        clock.work(0.06)

    paired_blocks(timed(call), timed(call), nothing, QUICK, 0)
    assert gc.isenabled()
    warm_calls = 6  # three of each side, before the collector is stopped
    assert not any(enabled[warm_calls:]) and len(enabled) > warm_calls + 16


def test_the_garbage_collector_is_restored_after_an_exception(clock: Clock) -> None:
    calls = [0]

    def call() -> None:
        calls[0] += 1
        clock.work(0.06)
        if calls[0] > 20:
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        paired_blocks(timed(call), timed(call), nothing, QUICK, 0)
    assert gc.isenabled()
    gc.unfreeze()  # a trial stays frozen; this process goes on


def test_a_collector_that_the_user_turned_off_stays_off(clock: Clock) -> None:
    gc.disable()
    try:
        side = timed(lambda: clock.work(0.06))
        paired_blocks(side, side, nothing, QUICK, 0)
        assert not gc.isenabled()
    finally:
        gc.enable()


class Neighbour:
    """Stands in for Strain: somebody slows this process while ``is_there`` says so."""

    throttled = False

    def __init__(self, is_there: Callable[[], bool]) -> None:
        self.is_there = is_there
        self.seen = False

    def mark(self) -> object:
        self.seen = self.is_there()
        return object()

    def disturbed_since(self, mark: object) -> frozenset[str]:
        return frozenset({"waited"} if self.seen else ())

    def slow(self, marks: Sequence[object]) -> list[bool]:
        return [False] * len(marks)


def test_disturbed_rounds_are_made_again_kept_and_left_out(clock: Clock) -> None:
    """Every third round somebody slows eager tenfold."""
    rounds = itertools.count()
    neighbour: Any = Neighbour(lambda: next(rounds) % 3 == 0)
    eager = timed(lambda: clock.work(0.2 if neighbour.seen else 0.02))
    compiled = timed(lambda: clock.work(0.01))
    found = paired_blocks(eager, compiled, nothing, Limits(0.02, 8, 1e9, 0.02), 0, neighbour)
    assert found.disturbed == (0, 3, 6, 9)
    assert len(found.eager_s) == 12
    assert found.speedup.value == pytest.approx(2.0)
    assert found.eager_call_s == pytest.approx(0.02)
    assert found.flags == ()


def test_of_calls_that_leave_no_time_for_more_rounds_the_disturbed_ones_are_made_again(
    clock: Clock,
) -> None:
    rounds = itertools.count()
    neighbour: Any = Neighbour(lambda: next(rounds) == 3)
    eager, compiled = timed(lambda: clock.work(0.8)), timed(lambda: clock.work(0.4))
    found = paired_blocks(eager, compiled, nothing, Limits(0.02, 64, 2.0, 0.03), 0, neighbour)
    assert len(found.disturbed) == 1
    assert len(found.eager_s) == 9
    assert "contended" not in found.flags


def test_a_neighbour_that_never_rests_ends_the_measurement_and_is_flagged(clock: Clock) -> None:
    neighbour: Any = Neighbour(lambda: True)
    side = timed(lambda: clock.work(0.02))
    found = paired_blocks(side, side, nothing, Limits(0.02, 64, 1.0, 0.02), 0, neighbour)
    assert "contended" in found.flags
    assert found.speedup.value == 1.0  # what there is, is computed from all of it
    assert 8 <= len(found.eager_s) <= 120


def test_rounds_from_before_the_best_pace_was_known_are_judged_by_it_as_well(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process begins in a slow spell, which flatters the other side, and takes it for usual."""
    state = {"slow": True}
    for kind, usual_s in (("_sums", 3e-6), ("_products", 30e-6)):
        monkeypatch.setattr(Pace, kind, lambda self, s=usual_s: s * (1.5 if state["slow"] else 1))
    monkeypatch.setattr(strain_module, "_waited_s", dict)
    monkeypatch.setattr(Strain, "_held_back_s", lambda self: 0.0)
    cpu = torch.device("cpu")
    strain = Strain(cpu, Pace(cpu))
    made, noise = itertools.count(), itertools.cycle([0.99, 1.0, 1.01])

    def eager() -> None:
        state["slow"] = next(made) < 34  # what it takes to warm up, and the first rounds
        clock.work((0.06 if state["slow"] else 0.04) * next(noise))

    limits = Limits(0.001, 24, 1e9, 0.02)
    compiled = timed(lambda: clock.work(0.02))
    found = paired_blocks(timed(eager), compiled, nothing, limits, 0, strain)
    slow = [number for number, s in enumerate(found.eager_s) if s > 0.05]
    assert len(slow) > 8
    assert set(slow) <= set(found.disturbed)
    assert found.speedup.value == pytest.approx(2.0, rel=0.005)
    assert "contended" not in found.flags


def test_where_the_machine_changed_meanwhile_it_is_measured_once_more(clock: Clock) -> None:
    """Eager takes twice as long from the first pair on: the clock of the processor fell."""
    calls = itertools.count()
    eager = timed(lambda: clock.work(0.02 if next(calls) < 12 else 0.04))
    compiled = timed(lambda: clock.work(0.02))
    neighbour: Any = Neighbour(lambda: False)
    limits = Limits(0.02, 8, 1e9, 0.02)
    found, said = watched_blocks(eager, compiled, nothing, limits, 0, neighbour)
    assert found.speedup.value == pytest.approx(2.0)
    assert found.eager_call_s == pytest.approx(0.04)
    assert said == []


@pytest.mark.parametrize(
    ("spins_s", "flags"),
    [(0.005, ()), (0.05, ()), (0.1, ("eager_slowed",))],
    ids=["briefly", "for some calls", "for long"],
)
def test_a_side_that_slows_the_other_is_measured_with_gaps_or_named(
    clock: Clock, spins_s: float, flags: tuple[str, ...]
) -> None:
    """Threads of the compiled side go on spinning after its call and take eager's cores."""
    ended = [-1e12]

    def compiled() -> None:
        clock.work(0.02)
        ended[0] = clock.monotonic()

    def eager() -> None:
        clock.work(0.03 if clock.monotonic() < ended[0] + spins_s else 0.02)

    limits = Limits(0.02, 8, 1e9, 0.02)
    neighbour: Any = Neighbour(lambda: False)
    found, said = watched_blocks(timed(eager), timed(compiled), nothing, limits, 0, neighbour)
    assert [f for f in found.flags if f == "eager_slowed"] == list(flags)
    assert len(said) == len(flags)
    if not flags:
        assert found.speedup.value == pytest.approx(1.0)


@pytest.mark.parametrize("spins", [False, True])
def test_a_neighbour_in_most_rounds_is_not_taken_for_the_other_side(
    clock: Clock, spins: bool
) -> None:
    """It slows eager in two of three rounds, a spinner in all; alone eager is as fast as it is."""
    made, ended, since = itertools.count(), [-1e12], [False]

    def is_there() -> bool:
        had, since[0] = since[0], False
        return had and next(made) % 3 > 0

    neighbour: Any = Neighbour(is_there)

    def compiled() -> None:
        clock.work(0.02)
        ended[0], since[0] = clock.monotonic(), True

    def eager() -> None:
        is_slow = clock.monotonic() < ended[0] + 0.1 if spins else neighbour.seen
        clock.work(0.03 if is_slow else 0.02)

    limits = Limits(1e-9, 64, 0.3, 0.02)
    found, _ = watched_blocks(timed(eager), timed(compiled), nothing, limits, 0, neighbour)
    assert "contended" in found.flags
    assert ("eager_slowed" in found.flags) is spins


def test_a_call_of_seconds_is_made_no_oftener_than_its_rounds_need(clock: Clock) -> None:
    made = []

    def long() -> None:
        made.append(clock.work(2.0))

    def longer() -> None:
        made.append(clock.work(3.0))

    strain = Strain(torch.device("cpu"))
    found, said = watched_blocks(timed(longer), timed(long), nothing, QUICK, 0, strain)
    assert found.speedup.value == pytest.approx(1.5)
    assert len(found.eager_s) == 8
    assert len(made) <= 20 and not said
