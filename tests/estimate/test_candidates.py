"""From records to candidates: what counts for a setting, and what does not."""

from __future__ import annotations

import dataclasses
import math
from statistics import stdev

import pytest
from fakes import failed, measured
from made_records import CHANNELS_LAST, LITE, MAX, Run

from autocompile.estimate.candidates import Candidate, candidates
from autocompile.estimate.decision import compare
from autocompile.estimate.intervals import between_runs, over_sets
from autocompile.estimate.limits import Limits
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.store.record import CallKind

FROZEN = CompileConfig(freezing=True)


def found(run: Run) -> dict[CompileConfig, Candidate]:
    return {c.record.config: c for c in candidates(run.records)}


def test_the_plainest_of_the_settings_with_the_same_code_stands_for_all() -> None:
    run = Run()
    both = CompileConfig(
        mode="max-autotune-no-cudagraphs", memory_format="channels_last"
    )
    first = run.search(both, 1.5)
    twin = run.search(CHANNELS_LAST, 1.5, duplicate_of=first)
    full = dataclasses.replace(CHANNELS_LAST, fullgraph=True)
    another = run.search(full, 1.5, duplicate_of=first)
    run.race(first, 1.4, 1.42, 1.38)
    seen = found(run)
    assert set(seen) == {EAGER, CHANNELS_LAST}
    c = seen[CHANNELS_LAST]
    assert c.record.number == twin
    assert set(c.same_code) == {first, another}
    assert c.speedup == over_sets([c.logs[n] for n in (1, 2, 3)]), (
        "the race counts, of any of them"
    )
    assert c.speedup.value == pytest.approx(1.4, rel=0.01), (
        "and its figure of the search does not"
    )


@pytest.mark.parametrize("eager_s", [0.7e-3, 1.4e-3])
def test_where_eager_was_faster_than_usual_a_setting_may_be_better_than_it_looks(
    eager_s: float,
) -> None:
    run = Run()
    run.search(MAX, 1.5)
    run.search(LITE, 1.5)
    over_own = 2.0 * eager_s / 1e-3  # as fast a call as twice the usual speed
    run.search(CHANNELS_LAST, over_own, eager_s=eager_s)
    seen = found(run)[CHANNELS_LAST]
    assert seen.speedup.value == pytest.approx(over_own, rel=0.01)
    assert seen.speedup.high == pytest.approx(max(over_own, 2.0), rel=0.1)
    assert seen.call_s == pytest.approx(0.5e-3, rel=0.01), "no faster than was measured"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_an_interval_is_as_wide_as_eager_mode_varies(device: str) -> None:
    """By how far its processes are apart, over the root of the sets; the order is not less sure."""
    run = Run()
    number = run.search(MAX, 1.5, eager_s=1.2e-3)
    run.race(number, 1.5, 1.5, 1.5, 1.5, eager_s=0.8e-3)
    run.records = [dataclasses.replace(r, device=device) for r in run.records]
    seen = found(run)[MAX]
    times = [1.0e-3, 1.2e-3, *[0.8e-3] * 4]
    apart = stdev(map(math.log, times)) / 2 if device == "cuda" else 0.0
    assert seen.eager_apart == pytest.approx(apart, rel=0.01)
    assert seen.reported == between_runs(seen.speedup, seen.eager_apart)
    own, alone = math.log(seen.reported.high / 1.5), between_runs(seen.speedup)
    assert (own > 1.5 * math.log(alone.high / 1.5)) is (device == "cuda")
    assert seen.least_gain == between_runs(seen.speedup, only_order=True).low


def test_new_weights_cost_the_same_share_of_the_baseline_that_is_taken() -> None:
    run = Run()
    for mode in ("max-autotune", "lite"):
        run.search(CompileConfig(mode=mode), 1.5)
    number = run.search(
        FROZEN, 1.0, eager_s=0.7e-3, refresh_s=0.3e-3
    )  # 0.7 ms and 0.3 ms a call
    record = run.records[number]
    run.records[number] = dataclasses.replace(record, calls_per_update=1)
    seen = found(run)[FROZEN].speedup
    assert seen.value == pytest.approx(0.7, rel=0.01)
    assert 1.0 < seen.high < 1.07


@pytest.mark.parametrize(
    ("outcome", "sets"),
    [("interrupted", 2), ("infrastructure", 2), ("wrong_output", None)],
)
def test_what_failed_once_in_a_race_is_no_candidate_but_from_outside(
    outcome: str, sets: int | None
) -> None:
    run = Run()
    lite = run.search(LITE, 1.5)
    run.race(lite, 1.5, 1.5)
    run.side(lite, failed(outcome), race=3)
    run.side(
        0, failed("timeout")
    )  # eager mode stays whatever becomes of a repeat of it
    seen = found(run)
    assert seen[EAGER].speedup.value == 1.0
    assert (seen[LITE].sets if LITE in seen else None) == sets


def test_what_new_weights_cost_counts() -> None:
    run = Run("forward_exploration")
    frozen = run.search(
        FROZEN, 2.0, refresh_s=0.05, calls_per_update=100
    )  # of calls of 1 ms
    run.search(LITE, 1.2)
    for _ in ("searched", "raced"):
        seen = found(run)
        assert seen[FROZEN].speedup.value == pytest.approx(1 / (0.5 + 0.5), rel=0.01)
        assert compare(seen[LITE], seen[FROZEN]).value == pytest.approx(1.2, rel=0.01)
        run.race(frozen, 2.0, 2.0, 2.0)  # where no side is asked for it


def test_weights_in_a_session_of_another_backend_are_not_expected_to_take_a_compile() -> (
    None
):
    """Else what is by far the fastest would not be raced, and never asked what they take."""
    run = Run("forward_exploration")
    baked = CompileConfig("openvino_onnx", options={"weights": "baked"})
    run.search(baked, 2.0, compile_s=5.0, calls_per_update=100, checks="first")
    assert found(run)[baked].speedup.value == pytest.approx(2.0, rel=0.01)


def test_until_frozen_weights_were_loaded_anew_they_are_expected_to_take_a_compile() -> (
    None
):
    run = Run("forward_exploration")
    facts = {"calls_per_update": 1000, "checks": "first"}
    frozen = run.search(FROZEN, 2.0, compile_s=0.5, **facts)
    assert found(run)[FROZEN].speedup.value == pytest.approx(1 / (0.5 + 0.5), rel=0.01)
    run.race(frozen, 2.0, refresh_s=0.05, calls_per_update=1000)
    seen = found(run)[FROZEN]
    assert seen.is_verified and seen.record.refresh_s == 0.05
    assert seen.speedup.value == pytest.approx(1 / (0.5 + 0.05), rel=0.01)


def test_where_nobody_knows_how_often_weights_change_constants_are_not_recommended() -> (
    None
):
    run = Run("forward_exploration")
    run.search(FROZEN, 2.0, refresh_s=0.05)
    assert not found(run)[FROZEN].keeps(Limits())
    plain = Run("forward")  # weights that stay
    plain.search(FROZEN, 2.0, refresh_s=0.05)
    assert found(plain)[FROZEN].keeps(Limits())


def test_a_setting_elsewhere_is_compared_with_eager_here() -> None:
    run = Run()
    run.search(CompileConfig("eager", environment="new"), 1.0, eager_s=0.8e-3)
    run.search(CompileConfig(environment="new"), 1.2, eager_s=0.8e-3)
    seen = found(run)
    assert seen[EAGER].speedup.value == 1.0
    elsewhere = seen[CompileConfig("eager", environment="new")]
    assert elsewhere.speedup.value == pytest.approx(1.25, rel=0.01)
    assert seen[CompileConfig(environment="new")].speedup.value == pytest.approx(
        1.5, rel=0.01
    )


def test_in_a_race_by_the_eager_times_of_the_same_set() -> None:
    """The machine is slow in one set, in both environments."""
    run = Run()
    here = run.search(LITE, 1.2)
    there = run.search(CompileConfig(environment="new"), 1.2, eager_s=0.8e-3)
    run.race(here, 1.2)
    run.race(there, 1.2, eager_s=0.8e-3)
    for number, slower in ((2, 1.4), (3, 1.0)):
        run.side(here, measured(1.2, eager_s=slower * 1e-3), race=number)
        run.side(there, measured(1.2, eager_s=slower * 0.8e-3), race=number)
    c = found(run)[CompileConfig(environment="new")]
    assert [math.exp(log) for log in c.logs.values()] == pytest.approx(
        [1.5] * 3, rel=0.01
    )


def test_a_limit_is_not_kept_where_the_figure_is_not_known() -> None:
    run = Run()
    run.search(LITE, 1.5)
    run.search(MAX, 1.5, peak_memory_bytes=100, compile_s=9.0)
    seen = found(run)
    assert not seen[LITE].keeps(Limits(memory_bytes=100))
    assert seen[MAX].keeps(Limits(memory_bytes=100))
    assert not seen[MAX].keeps(Limits(memory_bytes=99))
    assert not seen[MAX].keeps(Limits(compile_s=5.0))
    assert seen[MAX].keeps(Limits(latency_s=0.7e-3))
    assert not seen[MAX].keeps(Limits(latency_s=0.6e-3))


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ([1.0, 1.0, 1.14], set()),
        ([1.0, 1.0, 1.16], {3}),
        ([1.0, 1.2], {2}),
        ([1.0, 1.2, 1.2], {2, 3}),  # also where they are the more
        ([1.0, 1.0, 1.0, 1.2, 1.2], {4, 5}),
        ([None, None, None], set()),
        ([1.0, 1.0, None, 1.2], {4}),
    ],
)
def test_only_the_reference_work_tells_a_slow_set(
    seconds: list[float | None], slow: set[int]
) -> None:
    run = Run()
    lite = run.search(LITE, 1.3)
    for number, reference_s in enumerate(seconds, 1):
        run.side(lite, measured(1.3, reference_s=reference_s), race=number)
    run.side(lite, measured(1.9), race=9)  # its value is far from the others
    c = found(run)[LITE]
    assert set(c.logs) == set(c.blocks) == {*range(1, len(seconds) + 1), 9} - slow
    assert (c.sets, c.slow_sets) == (len(c.logs), len(slow)), (
        "the count is that of what was used"
    )


def test_where_both_sides_waver_different_processes_are_compared_by_their_speedups() -> (
    None
):
    run = Run()
    lite = run.search(LITE, 1.3)
    for number, slower in enumerate([1.0, 1.2, 1.4], 1):
        run.side(lite, measured(1.3, eager_s=slower * 1e-3), race=number)
    run.search(MAX, 1.3, eager_s=0.8e-3)
    seen = found(run)
    assert compare(seen[MAX], seen[LITE]).value == pytest.approx(1.0, rel=0.01)


def test_one_process_is_as_uncertain_as_processes_are_apart() -> None:
    """However steady its own rounds were."""
    run = Run()
    run.search(LITE, 1.3, noise=0.0)
    speedup = found(run)[LITE].speedup
    assert speedup.low < 1.27 and speedup.high > 1.33
    run.search(MAX, 1.3, noise=0.2)
    assert found(run)[MAX].speedup.half_width > 1.5 * speedup.half_width


def test_two_settings_of_one_process_are_compared_block_by_block() -> None:
    """Their sets are far apart, and in each the one is 3 % faster than the other."""
    run = Run()
    one, other = run.search(LITE, 1.3), run.search(MAX, 1.3)
    for number, speedup in enumerate((1.1, 1.3, 1.5), 1):
        ending = measured(1.03 * speedup, raced_in=70 + number)
        run.side(one, ending, race=number)
        run.side(other, measured(speedup, raced_in=70 + number), race=number)
    seen = found(run)
    ratio = compare(seen[LITE], seen[MAX])
    assert ratio.value == pytest.approx(1.03, rel=1e-3)
    assert 1.0 < ratio.low < ratio.high < 1.06
    assert seen[LITE].speedup.half_width > 0.1
    assert compare(seen[LITE], seen[LITE]).high == 1.0


def test_a_twin_whose_original_is_not_on_disk_is_still_a_candidate() -> None:
    run = Run()
    run.search(LITE, 1.3, duplicate_of=77)
    run.search(CompileConfig(environment="new"), 1.3, duplicate_of=78)
    assert found(run)[LITE].speedup.value == pytest.approx(1.3, rel=1e-3)
    alone = [r for r in run.records if r.config not in (EAGER, DEFAULT_INDUCTOR)]
    assert len(candidates(alone)) == 2


def test_what_is_reported_is_wider_than_what_decides_and_eager_is_exactly_1() -> None:
    run = Run()
    lite = run.search(LITE, 1.3)
    run.race(lite, 1.3, 1.3, 1.3)
    eager, found = candidates(run.records)
    assert found.reported.value == found.speedup.value
    assert found.reported.low < found.speedup.low
    assert found.reported.high > found.speedup.high
    assert found.throughput.half_width == pytest.approx(found.reported.half_width)
    assert (eager.reported.low, eager.reported.high) == (1.0, 1.0)


def test_a_limit_of_latency_is_of_a_call_alone_where_calls_are_timed_in_a_loop() -> (
    None
):
    run = Run()
    run.search(LITE, 1.5)
    (record,) = [r for r in run.records if r.config == LITE]
    record.measurement = dataclasses.replace(record.measurement, pass_s=0.9e-3)
    c = found(run)[LITE]
    assert c.call_s == pytest.approx(1e-3 / 1.5, rel=0.01)
    assert not c.keeps(Limits(latency_s=0.8e-3)) and c.keeps(Limits(latency_s=1e-3))


def test_limits_of_a_workload_are_of_its_calls_and_not_of_a_pass() -> None:
    run = Run()
    shapes = [CallKind("8", 18, 5e-5, 4e-5), CallKind("64", 2, 2e-4, 1e-4)]
    run.search(LITE, 1.5, kinds=[vars(kind) for kind in shapes])
    c = found(run)[LITE]
    assert c.keeps(Limits(latency_s=1.01e-4)), (
        "the slowest shape, where a pass takes 0.67 ms"
    )
    assert not c.keeps(Limits(latency_s=0.99e-4))
    assert c.keeps(Limits(percentiles={"p50": 4.1e-5, "p99": 1.01e-4}))
    assert not c.keeps(Limits(percentiles={"p50": 4.1e-5, "p99": 0.99e-4}))
    assert c.eager_throughput == pytest.approx(4 / 1e-3)


@pytest.mark.parametrize("calls", [1, 20])
def test_new_weights_come_after_so_many_calls_and_not_passes(calls: int) -> None:
    run = Run()
    kinds = [vars(CallKind("8", calls, 5e-5, 4e-5))]
    run.search(FROZEN, 2.0, kinds=kinds, refresh_s=1e-2, calls_per_update=100)
    frozen = found(run)[FROZEN]
    with_costs_s = frozen.eager_call_s / frozen.speedup.value
    assert with_costs_s == pytest.approx(0.5e-3 + calls * 1e-2 / 100, rel=0.01)
    assert frozen.call_s == pytest.approx(0.5e-3, rel=0.01), "a call waits for itself"
