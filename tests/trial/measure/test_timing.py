"""Sides with known times give the ratios that they have, in as many rounds as it takes."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import Clock

from autocompile.estimate.intervals import median, speedup
from autocompile.protocol.requests import TimingLimits
from autocompile.store.record import Measurement
from autocompile.trial.measure.timing import (
    Rounds,
    StreamTimer,
    Timed,
    Timer,
    block,
    cost_of_giving_back,
    fill,
    lead_of,
    no_garbage_collection,
    screen,
    side_by_side,
    timer_of,
)

LIMITS = TimingLimits(rounds=8, max_s=0.5, front_s=1.5, half_width=0.02, block_s=0.02)


TIMER = Timer()


def nothing() -> None:
    """No state."""


def timed(
    call: Callable[[], object],
    restore: Callable[[], None] = nothing,
    context: Callable[
        [], contextlib.AbstractContextManager[object]
    ] = contextlib.nullcontext,
) -> Timed:
    return Timed(call, restore, context)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("autocompile.trial.measure.timing.time", made)
    return made


def screened(
    eager: Timed, other: Timed, limits: TimingLimits = LIMITS, seed: int = 0
) -> Measurement:
    """A comparison of which there is nothing to say."""
    found, said = screen(eager, other, TIMER, limits, seed)
    assert not said and not found.flags
    return found


def raced(
    sides: Sequence[Timed], most: int = 24, max_s: float = 1e9, **more: Any
) -> Rounds:
    rounds = Rounds(sides, TIMER, 0.02, 0)
    side_by_side(rounds, TimingLimits.exactly(most, max_s), **more)
    return rounds


def noisy(clock: Clock, seconds: float, noise: float, seed: int = 0) -> Timed:
    source = random.Random(seed)
    return timed(lambda: clock.work(seconds * source.lognormvariate(0, noise)))


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
    sides = Busy(4e-3), Busy(2e-3)
    rounds = Rounds([timed(side) for side in sides], TIMER, 0.02, 0)
    before = [len(side.took_s) for side in sides]
    side_by_side(rounds, TimingLimits.exactly(12, 60.0))
    for side, skipped, seconds, calls, lead in zip(
        sides, before, rounds.times, rounds.calls, rounds.leads, strict=True
    ):
        made = side.took_s[skipped:]
        blocks = [made[i : i + calls] for i in range(lead, len(made), lead + calls)]
        assert min(seconds) > 0.99 * side.seconds
        assert all(s * calls >= sum(b) for s, b in zip(seconds, blocks, strict=True))
        assert median(seconds) == pytest.approx(
            median([sum(b) / calls for b in blocks]), rel=0.05
        )


def test_a_comparison_of_eager_with_itself_includes_one(clock: Clock) -> None:
    call = noisy(clock, 2e-3, 0.02)
    every = [screened(call, call, seed=seed) for seed in range(40)]
    holds = [found.speedup.low <= 1.0 <= found.speedup.high for found in every]
    assert sum(holds) >= 34, "an interval of 95 % holds 38 of 40 times"


def test_drift_that_touches_both_sides_cancels(clock: Clock) -> None:
    """The machine gets half as fast on the way; the ratio stays what it is."""

    def slow_down(seconds: float) -> Timed:
        return timed(lambda: clock.work(seconds * (1 + clock.now_ns / 1e9 / 4)))

    eager_s, compiled_s = raced((slow_down(3e-3), slow_down(2e-3)), 12).times
    assert eager_s[-1] > 1.1 * eager_s[0]
    assert speedup(eager_s, compiled_s).value == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize(("rounds", "beat"), [(8, 0.0), (8, 9.0), (12, 0.0), (12, 9.0)])
def test_a_clear_comparison_has_the_fewest_rounds(
    clock: Clock, rounds: int, beat: float
) -> None:
    sides = timed(lambda: clock.work(2e-3)), timed(lambda: clock.work(1e-3))
    found = screened(*sides, replace(LIMITS, rounds=rounds, beat=beat))
    assert len(found.eager_s) == rounds
    assert found.speedup.value == pytest.approx(2.0)


def test_noise_takes_more_rounds_until_the_interval_is_narrow(clock: Clock) -> None:
    call = noisy(clock, 0.06, 0.03)
    found = screened(call, call, replace(LIMITS, half_width=0.012, front_s=1e9))
    rounds = len(found.eager_s)
    assert rounds > 8 and rounds % 4 == 0
    assert found.speedup.half_width <= 0.012


def took_s(found: Measurement) -> float:
    """Of all its rounds, with the calls that nobody times."""
    eager, other = (
        calls + lead for calls, lead in zip(found.calls, found.leads, strict=True)
    )
    return sum(found.eager_s) * eager + sum(found.compiled_s) * other


def test_a_setting_clearly_below_the_best_is_dropped_after_the_fewest_rounds(
    clock: Clock,
) -> None:
    eager, other = noisy(clock, 0.02, 0.05), noisy(clock, 0.02, 0.05, 1)
    limits = replace(LIMITS, half_width=1e-9, beat=2.0)
    assert len(screened(eager, other, limits).eager_s) == 8


def test_a_setting_near_the_best_is_timed_for_longer_than_one_that_hardly_is(
    clock: Clock,
) -> None:
    """Both are too noisy for a verdict; one seems to be as fast as the best, one a fifth slower."""
    limits = replace(LIMITS, half_width=1e-9)
    eager, other = noisy(clock, 0.01, 0.6), noisy(clock, 0.01, 0.6, 1)
    near = screened(eager, other, replace(limits, beat=0.9))
    below = screened(eager, other, replace(limits, beat=1.25))
    assert below.speedup.high > 1.25
    assert took_s(below) == pytest.approx(LIMITS.max_s, abs=0.25)
    assert took_s(near) == pytest.approx(LIMITS.front_s, abs=0.25)


def test_a_call_of_seconds_is_made_no_oftener_than_its_rounds_need(
    clock: Clock,
) -> None:
    made: list[float] = []

    def side(seconds: float) -> Timed:
        return timed(lambda: made.append(seconds) or clock.work(seconds))

    found = screened(side(3.0), side(2.0))
    assert found.speedup.value == pytest.approx(1.5)
    assert len(found.eager_s) == 3
    assert len(made) == 1 + 2 + 2 * 3, "eager alone, one of each, and the rounds"


def test_a_call_of_seconds_beside_a_short_one_is_not_warmed_either(
    clock: Clock,
) -> None:
    made: list[None] = []

    def long() -> None:
        made.append(clock.work(3.0))

    found = screened(timed(long), timed(lambda: clock.work(1e-3)))
    assert found.speedup.value == pytest.approx(3000)
    assert found.calls == (1, 20)
    assert len(made) - len(found.eager_s) == 4, (
        "alone, at first twice, and to see what it slows"
    )


def test_all_sides_of_a_race_have_as_many_rounds_and_are_told_apart(
    clock: Clock,
) -> None:
    rounds = raced([timed(lambda s=s: clock.work(s)) for s in (4e-3, 2e-3, 1e-3, 0.03)])
    assert rounds.count == 24 and {len(times) for times in rounds.times} == {24}
    every = [rounds.measurement(index) for index in range(4)]
    assert [m.speedup.value for m in every] == pytest.approx([1, 2, 4, 4 / 30])
    assert [m.calls for m in every] == [(5, 5), (5, 10), (5, 20), (5, 1)]


def test_a_race_ends_with_its_time_but_has_three_rounds(clock: Clock) -> None:
    def count(seconds: float) -> int:
        return raced([timed(lambda: clock.work(seconds))] * 2, max_s=3.0).count

    assert count(1e-3) == 24
    assert count(0.2) == 8
    assert count(5.0) == 3


def test_waiting_for_ones_turn_takes_nothing_from_the_time(clock: Clock) -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        clock.work(10.0)
        log.append("wait")
        yield
        log.append("go on")

    assert raced([timed(lambda: clock.work(0.02))] * 2, 5, 3.0, turn=turn).count == 5
    assert log == ["wait", "go on"] * 5


def test_the_order_of_blocks_is_another_in_each_round_and_follows_the_seed(
    clock: Clock,
) -> None:
    def order(seed: int) -> list[str]:
        log: list[str] = []

        def side(name: str) -> Timed:
            return timed(lambda: log.append(name) or clock.work(0.06))

        rounds = Rounds([side(name) for name in "ecd"], TIMER, 0.02, seed)
        log.clear()
        side_by_side(rounds, TimingLimits.exactly(40, 1e9))
        return ["".join(log[i : i + 3]) for i in range(0, len(log), 3)]

    seen = order(0)
    assert set(seen) == {"".join(each) for each in itertools.permutations("ecd")}
    assert order(0) == seen != order(1)


@pytest.mark.parametrize(
    ("call_s", "calls"),
    [(0.9, 1), (0.2, 1), (0.03, 1), (0.01, 2), (0.001, 20), (1e-5, 2000)],
)
def test_a_block_lasts_about_as_long_as_asked_or_one_call(
    clock: Clock, call_s: float, calls: int
) -> None:
    side = timed(lambda: clock.work(call_s))
    found = screened(side, side)
    assert found.calls == (calls, calls)
    assert found.eager_call_s == pytest.approx(call_s)
    assert fill(side, TIMER, 0.02) == calls
    assert block(timed(nothing), 4, TIMER) > 0, "though the clock sees no time pass"


@pytest.mark.parametrize("wait_s", [0.1, 3.0])
@pytest.mark.parametrize("stalled", range(1, 16))
def test_one_wait_for_a_core_does_not_size_blocks(
    clock: Clock, stalled: int, wait_s: float
) -> None:
    calls = itertools.count(1)
    waits = timed(lambda: clock.work(wait_s if next(calls) == stalled else 1e-4))
    rounds = Rounds((waits, timed(lambda: clock.work(1e-4))), TIMER, 0.02, 0)
    assert rounds.calls == [200, 200]


def test_restore_is_called_before_every_block_and_outside_the_clock(
    clock: Clock,
) -> None:
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
    assert raced((side, side), 8).times == [[0.06] * 8] * 2
    assert re.fullmatch("(restore enter( call)+ )+", " ".join((*log, "")))
    assert log[-3 * 16 :] == ["restore", "enter", "call"] * 16, "eight rounds"


def test_the_device_is_waited_for_inside_the_clock(clock: Clock) -> None:
    """A call that only queues its work takes as long as the work does."""
    queued = [0.0]

    def side(seconds: float) -> Timed:
        def call() -> None:
            queued[0] += seconds

        return timed(call)

    def synchronize() -> None:
        clock.work(queued[0])
        queued[0] = 0.0

    found, _ = screen(side(2e-3), side(1e-3), Timer(synchronize), LIMITS, 0)
    assert found.eager_call_s == pytest.approx(2e-3)
    assert found.speedup.value == pytest.approx(2.0)


class Gpu:
    """A device that works on what was queued, while the clock of the host goes on."""

    def __init__(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.timer = clock, StreamTimer(torch.device("cuda"))
        self.ends_s = {"ours": 0.0, "another": 0.0}
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: Any) -> None:
                self.at_s = max(gpu.ends_s["ours"], clock.monotonic())

            def elapsed_time(self, end: Any) -> float:
                return 1e3 * float(end.at_s - self.at_s)

        class Stream:
            @staticmethod
            def synchronize() -> None:
                gpu.wait(gpu.ends_s["ours"])

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream)
        self.timer.synchronize = lambda: self.wait(max(self.ends_s.values()))

    def wait(self, end_s: float) -> None:
        self.clock.work(1e-5 + max(0.0, end_s - self.clock.monotonic()))

    def step(self, *kernels: tuple[float, float], stream: str = "ours") -> Timed:
        """Each of so many seconds of the host, after which the device can begin, and of that."""

        def call() -> None:
            for host_s, device_s in kernels:
                self.clock.work(host_s)
                begins_s = max(self.ends_s[stream], self.clock.monotonic())
                self.ends_s[stream] = begins_s + device_s

        return timed(call)


@pytest.fixture
def gpu(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(clock, monkeypatch)


HALVES = (
    [(8e-3, 2e-3)] * 10,
    [(2e-3, 8e-3)] * 10,
)  # forward waits for the host, backward does not


@pytest.mark.parametrize(
    ("kernels", "true_s", "calls"),
    [
        ([(1.5e-3, 1.4e-3)] * 10, 0.015, 3),
        ([(1e-3, 1.4e-3)] * 10, 0.014, 3),
        ([(5e-5, 4e-4)] * 10, 0.004, 5),
        ([*HALVES[0], *HALVES[1]], 0.1, 1),
        ([(8e-3, 2e-3)] * 24 + [(2e-3, 8e-3)] * 24, 0.24, 1),
    ],
    ids=["host", "device", "short", "halves", "long halves"],
)
def test_on_a_gpu_calls_are_timed_as_in_a_long_loop(
    gpu: Gpu, kernels: list[tuple[float, float]], true_s: float, calls: int
) -> None:
    """There the slower of host and device counts; alone, a call waits for both."""
    eager, graph = gpu.step(*kernels), gpu.step((1e-4, 4e-3))
    alone_s = gpu.timer.between_synchronizations().seconds(eager.call, 1)
    assert alone_s > 1.005 * true_s
    found, _ = screen(eager, graph, gpu.timer, LIMITS, 0)
    assert found.eager_call_s == pytest.approx(true_s, rel=0.002)
    assert found.compiled_call_s == pytest.approx(4e-3, rel=0.002)
    assert found.calls == (calls, 5) and found.leads == (min(2, calls), 2)
    assert found.pass_s == pytest.approx(4.1e-3), (
        "a call alone, for what a first one took more"
    )
    itself, _ = screen(eager, eager, gpu.timer, LIMITS, 0)
    assert itself.compiled_call_s == pytest.approx(true_s, rel=0.002)


@pytest.mark.parametrize("true_s", [1e-3, 0.012, 0.3])
def test_work_of_a_stream_that_no_event_sees_counts_once(
    gpu: Gpu, true_s: float
) -> None:
    """Then both sides are timed between synchronizations."""
    elsewhere, ours = gpu.step((1e-5, true_s), stream="another"), gpu.step((1e-3, 4e-3))
    found, _ = screen(ours, elsewhere, gpu.timer, LIMITS, 0)
    assert found.compiled_call_s == pytest.approx(true_s, rel=0.03)
    assert found.eager_call_s == pytest.approx(4.2e-3, rel=0.01), (
        "five calls, and the first alone"
    )
    rounds = Rounds((ours, ours), gpu.timer, 0.02, 0)
    assert isinstance(rounds.timer, StreamTimer)


@pytest.mark.gpu
def test_a_real_gpu_is_timed_as_in_a_long_loop() -> None:
    """Many small kernels, for which the host takes longer than the GPU, then a large product."""
    device = torch.device("cuda")
    timer, side_stream = timer_of(device), torch.cuda.Stream(device)
    x, y = torch.randn(4096, 4096, device=device), torch.zeros(8, device=device)

    def step() -> None:
        for _ in range(400):
            y.add_(1)
        torch.mm(x, x)

    def elsewhere() -> None:
        with torch.cuda.stream(side_stream):
            step()

    step(), elsewhere(), timer.synchronize()
    true_s = timer.between_synchronizations().seconds(step, 60) / 60
    found = [block(timed(step), 3, timer, 2) for _ in range(9)]
    assert median(found) == pytest.approx(true_s, rel=0.05)
    assert (
        median([timer.between_synchronizations().seconds(step, 1) for _ in range(9)])
        > 1.1 * true_s
    )
    assert timer.misses(timed(elsewhere)) and not timer.misses(timed(step))


def test_a_record_says_how_calls_that_use_other_streams_were_timed() -> None:
    class Misses(Timer):
        def misses(self, side: Timed) -> bool:
            return side.call is elsewhere

    def here() -> None: ...

    def elsewhere() -> None: ...

    for other, flags in ((here, ()), (elsewhere, ("between_synchronizations",))):
        rounds = Rounds([timed(here), timed(other)], Misses(), 1e-4, 0)
        side_by_side(rounds, TimingLimits(max_s=0.01, front_s=0.01))
        assert rounds.measurement(1).flags == flags


def test_calls_that_the_other_side_slows_are_not_timed(clock: Clock) -> None:
    """Threads of eager mode spin for 8 ms after its last call, and take a core from the other's."""
    ended = [-1.0]

    def eager() -> None:
        clock.work(1e-3)
        ended[0] = clock.monotonic()

    def compiled() -> None:
        clock.work(1e-3 if clock.monotonic() < ended[0] + 8e-3 else 4e-4)

    found = screened(timed(eager), timed(compiled))
    assert found.speedup.value == pytest.approx(2.5, rel=0.01)
    assert found.leads == (0, 8)
    assert found.calls == (20, 50), "no shorter for that"


@pytest.mark.parametrize(
    ("usual", "first", "lead"),
    [
        (2e-5, 2e-5, 0),
        (0.018, 0.018, 0),
        (1e-3, 5e-3, 1),
        (0.03, 0.036, 1),
        (0.3, 0.31, 0),
    ],
    ids=[
        "equal",
        "equal and long",
        "slowed",
        "slowed for a block",
        "so long that little is lost",
    ],
)
def test_a_first_call_that_is_slowed_by_any_other_side_is_left_out(
    clock: Clock, usual: float, first: float, lead: int
) -> None:
    last = [""]

    def side(name: str) -> Timed:
        def call() -> None:
            clock.work(usual if last[0] == name else first)
            last[0] = name

        return timed(call)

    rounds = raced([side(name) for name in "ecd"], 6)
    assert rounds.leads == [lead] * 3
    if lead:
        assert rounds.times == [pytest.approx([usual] * 6)] * 3


@pytest.mark.parametrize("stalled", range(12))
def test_a_stall_in_one_look_is_not_taken_for_the_other_side(
    clock: Clock, stalled: int
) -> None:
    """It comes in the first call after a change of sides, once."""
    last, changes = [""], itertools.count()

    def side(name: str) -> Timed:
        def call() -> None:
            changed, last[0] = last[0] not in ("", name), name
            clock.work(6e-3 if changed and next(changes) == stalled else 1e-3)

        return timed(call)

    assert Rounds((side("e"), side("c")), TIMER, 0.02, 0).leads == [0, 0]


@pytest.mark.parametrize(
    ("times", "calls", "lead"),
    [
        ([], 1, 0),
        ([1.0] * 8, 8, 0),
        ([2.0, *[1.0] * 7], 8, 1),
        ([2.0, *[1.0] * 7], 100, 0),  # one percent of so many calls
        ([1.02] * 4 + [1.0] * 4, 8, 0),  # noise
        ([3.0, 1.0, 3.0, 1.0, *[1.0] * 4], 8, 3),
        ([3.0] * 4 + [1.0] * 4, 8, 4),
        ([3.0] * 8, 8, 0),  # goes on for longer than anybody looked
    ],
)
def test_a_lead_is_as_long_as_more_than_a_hundredth_of_a_block_is_lost(
    times: list[float], calls: int, lead: int
) -> None:
    assert lead_of(times, calls) == lead


@pytest.mark.parametrize(
    ("spins_s", "is_slowed"),
    [(0.005, False), (0.05, False), (0.1, True)],
    ids=["briefly", "for some calls", "for long"],
)
def test_a_side_that_slows_eager_for_longer_than_a_lead_is_named(
    clock: Clock, spins_s: float, is_slowed: bool
) -> None:
    """Threads of the compiled side go on spinning after its call and take eager's cores."""
    ended = [-1e12]

    def compiled() -> None:
        clock.work(0.02)
        ended[0] = clock.monotonic()

    def eager() -> None:
        clock.work(0.03 if clock.monotonic() < ended[0] + spins_s else 0.02)

    found, said = screen(timed(eager), timed(compiled), TIMER, LIMITS, 0)
    assert found.flags == (("eager_slowed",) if is_slowed else ())
    if is_slowed:
        assert len(said) == 1 and said[0].startswith(
            "eager runs 50% slower next to this setting"
        )
    else:
        assert not said and found.speedup.value == pytest.approx(1.0)


def test_a_machine_that_got_slower_meanwhile_is_not_taken_for_the_other_side(
    clock: Clock,
) -> None:
    """Eager alone takes as long afterwards."""
    eager = timed(lambda: clock.work(0.02 if clock.monotonic() < 0.5 else 0.04))
    found, said = screen(eager, timed(lambda: clock.work(0.02)), TIMER, LIMITS, 0)
    assert found.eager_call_s > 1.1 * 0.02
    assert not said and not found.flags


def test_long_calls_that_differ_by_chance_are_slowed_by_nobody(clock: Clock) -> None:
    """Steps of two seconds took between one and a half and three, for their page faults."""
    factors = itertools.chain([1.0, 1.0, 1.6, 1.1, 1.5], itertools.repeat(1.0))
    eager = timed(lambda: clock.work(next(factors)))
    found, said = screen(eager, timed(lambda: clock.work(1.0)), TIMER, LIMITS, 0)
    assert found.eager_call_s > 1.25
    assert not said and not found.flags


@pytest.mark.parametrize("is_on", [True, False])
def test_no_garbage_is_collected_while_it_is_timed(clock: Clock, is_on: bool) -> None:
    enabled = []

    def call() -> None:
        enabled.append(gc.isenabled())
        clock.work(0.06)

    (gc.enable if is_on else gc.disable)()
    try:
        screened(timed(call), timed(call))
        assert gc.isenabled() is is_on
    finally:
        gc.enable()
    assert not any(enabled) and len(enabled) > 16


def test_the_garbage_collector_is_restored_after_an_exception(clock: Clock) -> None:
    calls = itertools.count()

    def call() -> None:
        clock.work(0.06)
        if next(calls) > 20:
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        screen(timed(call), timed(call), TIMER, LIMITS, 0)
    assert gc.isenabled()
    gc.unfreeze()  # a trial stays frozen; this process goes on


GIVES_BACK = """
import contextlib, json, torch
from autocompile.trial.measure.timing import Timed, _with_page_faults, cost_of_giving_back

def call():
    several = [torch.full((1 << 18,), 1.0) for _ in range(8)]  # 8 MB, which is freed at the end
    return several[-1][0].item()

side = Timed(call, lambda: None, contextlib.nullcontext)
print(json.dumps([cost_of_giving_back(side), _with_page_faults(side)[1]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_what_it_costs_to_give_memory_back_is_measured_and_then_it_is_kept() -> None:
    command = [sys.executable, "-c", GIVES_BACK]
    # Each block comes from the system, whatever the heap is like.
    gives_back = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=gives_back
    )
    said = done.stdout
    cost, faults = json.loads(said)
    assert cost["faults"] > 1000  # pages of 4 KiB
    assert cost["times"] > 1.1
    assert faults < 20
    long = timed(lambda: time.sleep(0.21))
    assert cost_of_giving_back(long) == {}


class Cycle:
    """Refers to itself, as what an exception or a hook keeps of a step does."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Cycle.alive += 1

    def __del__(self) -> None:
        Cycle.alive -= 1


def test_what_calls_leave_in_cycles_is_freed_before_the_next_round() -> None:
    """Else a step's activations would pile up for a whole race."""
    most, made = 0, 0

    def call() -> None:
        nonlocal most, made
        Cycle()
        made += 1
        most = max(most, Cycle.alive)

    sides = [timed(call), timed(call)]
    with no_garbage_collection():
        rounds = Rounds(sides, TIMER, 1e-4, 0)
        before, most = made, 0
        side_by_side(rounds, TimingLimits.exactly(30, 60.0))
    of_a_round = (made - before) / 30
    assert most <= 2 * of_a_round
