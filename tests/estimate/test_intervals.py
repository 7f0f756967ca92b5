"""Intervals over the rounds of a process and over processes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autocompile.estimate.intervals import (
    Interval,
    between_runs,
    median_interval,
    over_sets,
    percentile,
    ratio,
    speedup,
)


@pytest.mark.parametrize("count", [9, 12, 20, 40])
def test_the_interval_covers_the_truth_about_95_times_in_100(count: int) -> None:
    noise = np.random.default_rng(1)
    hits = 0
    for _ in range(600):
        interval = median_interval((3.0 + noise.standard_t(4, size=count)).tolist())
        hits += interval.low <= 3.0 <= interval.high
    assert 0.92 <= hits / 600 <= 0.99


@pytest.mark.parametrize(
    ("count", "below"), [(6, 0), (8, 0), (12, 2), (20, 5), (24, 6), (40, 13)]
)
def test_the_ends_are_those_of_the_exact_sign_test(count: int, below: int) -> None:
    def outside(ends: int) -> float:
        return 2 * sum(math.comb(count, k) for k in range(ends + 1)) / 2**count

    assert outside(below) <= 0.05 < outside(below + 1)
    values = [float(n // 2 if n % 2 else count - 1 - n // 2) for n in range(count)]
    interval = median_interval(values)
    assert (interval.low, interval.high) == (float(below), float(count - 1 - below))


def test_rounds_that_a_neighbour_stretches_do_not_move_the_estimate() -> None:
    # Three of seven blocks of the eager side took 20 to 80 times as long.
    eager = [1.25, 78.0, 1.27, 1.24, 26.0, 31.0, 1.26]
    assert speedup(eager, [1.0] * 7).value == pytest.approx(1.27)


def test_a_drift_of_the_machine_cancels_in_pairs() -> None:
    drift = [1.0 + 0.05 * i for i in range(20)]
    found = speedup([2.0 * d for d in drift], [1.0 * d for d in drift])
    assert found.value == pytest.approx(2.0)
    assert found.half_width < 1e-9


def test_correlated_rounds_widen_the_interval() -> None:
    noise = np.random.default_rng(3).normal(0, 1, 64)
    walk = np.cumsum(noise).tolist()
    shuffled = np.random.default_rng(4).permutation(walk).tolist()
    wide, narrow = median_interval(walk), median_interval(shuffled)
    assert wide.high - wide.low > narrow.high - narrow.low


@pytest.mark.parametrize(
    ("eager", "compiled"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])]
)
def test_times_that_are_none_are_refused(
    eager: list[float], compiled: list[float]
) -> None:
    with pytest.raises(ValueError, match="block"):
        speedup(eager, compiled)
    with pytest.raises(ValueError, match="finite"):
        median_interval([1.0, math.nan])
    with pytest.raises(ValueError, match="no process"):
        over_sets([])


# --- over processes ------------------------------------------------------------------------------


def covered(spread: float, count: int, times: int = 800) -> float:
    """How often the interval holds the truth; ``spread`` 0 is for any usual one."""
    noise = np.random.default_rng(count)
    hits = 0
    for _ in range(times):
        own = spread or noise.uniform(0.005, 0.03)
        found = over_sets(noise.normal(math.log(1.3), own, count).tolist())
        hits += found.low <= 1.3 <= found.high
    return hits / times


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_processes_that_differ_by_half_to_three_percent_cover_the_truth(
    count: int,
) -> None:
    """Each setting has a spread of its own, and which is not known."""
    assert covered(0.0, count) >= 0.92
    for spread in (0.005, 0.01, 0.015):
        assert covered(spread, count) >= 0.94
    assert covered(0.02, count) >= 0.91
    assert covered(0.03, count) >= 0.83, "of what is wider than usual a little less"


def test_processes_that_agree_by_chance_are_not_taken_at_their_word() -> None:
    found = over_sets([math.log(1.2)] * 3)
    assert found.value == pytest.approx(1.2)
    assert 0.01 < found.half_width < 0.03
    assert over_sets([math.log(1.2)] * 6).half_width > 0.005


def test_processes_that_disagree_widen_the_estimate() -> None:
    tight, apart = (
        over_sets(np.log(v).tolist()) for v in ([1.19, 1.20, 1.21], [1.0, 1.2, 1.44])
    )
    assert tight.value == pytest.approx(1.2, rel=1e-3)
    assert apart.value == pytest.approx(1.2)
    assert apart.half_width > 5 * tight.half_width


@pytest.mark.parametrize("spread", [0.005, 0.015, 0.03])
def test_one_more_process_does_not_widen_it_on_average(spread: float) -> None:
    noise = np.random.default_rng(2)
    sets = noise.normal(0.0, spread, (400, 6))
    widths = [
        np.mean([over_sets(each[:count].tolist()).half_width for each in sets])
        for count in range(1, 7)
    ]
    assert widths == sorted(widths, reverse=True)


def test_one_process_has_the_interval_of_what_is_usual() -> None:
    found = over_sets([math.log(1.5)])
    assert found.value == pytest.approx(1.5)
    assert found.high / found.value == pytest.approx(found.value / found.low)
    assert 0.03 < found.half_width < 0.05


def test_many_processes_have_students_interval() -> None:
    logs = np.random.default_rng(3).normal(0.2, 0.03, 60)
    found = over_sets(logs.tolist())
    reach = 2.0 * logs.std(ddof=1) / math.sqrt(60)
    assert math.log(found.value) == pytest.approx(logs.mean())
    assert math.log(found.high / found.value) == pytest.approx(reach, rel=0.1)


def test_the_order_of_processes_and_the_direction_of_a_ratio_do_not_matter() -> None:
    logs = [0.1, 0.14, 0.12, 0.2]
    found, turned = over_sets(logs), over_sets([-x for x in logs[::-1]])
    assert turned.value == pytest.approx(1 / found.value)
    assert (turned.low, turned.high) == pytest.approx((1 / found.high, 1 / found.low))


def test_the_ratio_of_two_estimates_adds_their_errors() -> None:
    quotient = ratio(Interval(2.0, 1.9, 2.1), Interval(1.0, 0.9, 1.1))
    assert quotient.value == 2.0
    assert quotient.low < 1.9 * 1.0
    assert quotient.high > 2.1
    assert quotient.low > 1.9 / 1.1


@pytest.mark.parametrize("apart", [0.005, 0.01, 0.015])
def test_runs_of_the_same_setting_that_are_minutes_apart_cover_the_truth(
    apart: float,
) -> None:
    noise = np.random.default_rng(5)
    hits = {"this run": 0, "other runs": 0}
    for _ in range(800):
        ran_at = math.log(1.3) + noise.normal(0.0, apart)
        found = over_sets(noise.normal(ran_at, 0.01, 3).tolist())
        for name, one in (("this run", found), ("other runs", between_runs(found))):
            hits[name] += one.low <= 1.3 <= one.high
    assert hits["other runs"] / 800 >= 0.95
    assert hits["this run"] < hits["other runs"]


def test_no_number_of_processes_makes_one_run_speak_for_others_exactly() -> None:
    found = over_sets([math.log(1.2)] * 60)
    other = between_runs(found)
    assert other.value == pytest.approx(1.2)
    assert found.half_width < 0.005
    assert 0.065 < other.half_width < 0.075


@pytest.mark.parametrize(
    ("percent", "seconds"),
    [(50, 2.0), (60, 2.0), (61, 3.0), (95, 3.0), (96, 9.0), (100, 9.0)],
)
def test_a_percentile_counts_each_kind_as_often_as_it_comes(
    percent: int, seconds: float
) -> None:
    times = [(9.0, 1), (2.0, 10), (3.0, 7), (1.0, 2)]
    assert percentile(times, percent) == seconds
    single = [s for s, calls in times for _ in range(calls)]
    assert percentile(times, percent) == percentile([(s, 1) for s in single], percent)


def test_of_no_call_there_is_no_percentile() -> None:
    with pytest.raises(ValueError, match="no call"):
        percentile([], 50)
