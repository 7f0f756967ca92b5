from __future__ import annotations

import math

import numpy as np
import pytest

from autocompile.estimate.intervals import (
    Interval,
    across_processes,
    lag1_autocorrelation,
    ratio,
    signed_rank_interval,
    speedup,
)


@pytest.mark.parametrize("count", [8, 12, 20, 40])
def test_the_interval_covers_the_truth_about_95_times_in_100(count: int) -> None:
    noise = np.random.default_rng(1)
    hits = 0
    for _ in range(600):
        interval = signed_rank_interval((3.0 + noise.standard_t(4, size=count)).tolist())
        hits += interval.low <= 3.0 <= interval.high
    assert 0.92 <= hits / 600 <= 0.99


def test_the_exact_interval_of_eight_values_is_that_of_the_published_table() -> None:
    # For n = 8 the two-sided 5 % table value is T <= 3: the fourth Walsh average from each end.
    values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    walsh = sorted((values[i] + values[j]) / 2 for i in range(8) for j in range(i, 8))
    interval = signed_rank_interval(values)
    assert (interval.low, interval.high) == (walsh[3], walsh[-4])
    assert interval.value == np.median(walsh)


def test_one_wild_round_does_not_move_the_estimate() -> None:
    eager, compiled = [1.0] * 20, [0.5] * 19 + [50.0]
    assert speedup(eager, compiled).value == pytest.approx(2.0)


def test_a_drift_of_the_machine_cancels_in_pairs() -> None:
    drift = [1.0 + 0.05 * i for i in range(20)]
    found = speedup([2.0 * d for d in drift], [1.0 * d for d in drift])
    assert found.value == pytest.approx(2.0)
    assert found.half_width < 1e-9


def test_correlated_rounds_widen_the_interval() -> None:
    noise = np.random.default_rng(3).normal(0, 1, 64)
    walk = np.cumsum(noise).tolist()
    assert lag1_autocorrelation(walk) > 0.3
    shuffled = np.random.default_rng(4).permutation(walk).tolist()
    wide, narrow = signed_rank_interval(walk), signed_rank_interval(shuffled)
    assert wide.high - wide.low > narrow.high - narrow.low


@pytest.mark.parametrize(("eager", "compiled"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])])
def test_times_that_are_none_are_refused(eager: list[float], compiled: list[float]) -> None:
    with pytest.raises(ValueError, match="block"):
        speedup(eager, compiled)


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        signed_rank_interval([1.0, math.nan])


def test_processes_that_disagree_widen_the_estimate() -> None:
    tight = [Interval(v, v * 0.999, v * 1.001) for v in (1.19, 1.20, 1.21)]
    apart = [Interval(v, v * 0.999, v * 1.001) for v in (1.0, 1.2, 1.44)]
    assert across_processes(tight).value == pytest.approx(1.2, rel=1e-3)
    assert across_processes(apart).low < 1.0 < across_processes(tight).low
    assert across_processes(tight[:1]) == tight[0]


def test_processes_cover_the_truth_about_95_times_in_100() -> None:
    noise = np.random.default_rng(5)
    hits = 0
    for _ in range(600):
        centres = np.exp(noise.normal(math.log(1.3), 0.01, size=3))
        found = across_processes([Interval(c, c * 0.999, c * 1.001) for c in centres])
        hits += found.low <= 1.3 <= found.high
    assert hits / 600 >= 0.92


def test_a_process_that_knows_next_to_nothing_hardly_counts() -> None:
    """Nine of one setting on a busy machine: one was interrupted in all of its eight rounds."""
    known = [1.15, 1.23, 1.12, 1.20, 1.12, 1.18, 1.23, 1.10]
    speedups = [Interval(v, v * 0.96, v * 1.04) for v in known]
    found = across_processes([*speedups, Interval(0.50, 0.16, 1.29)])
    assert found.value == pytest.approx(across_processes(speedups).value, rel=0.01)
    assert found.low > 1.1


def test_equally_certain_processes_have_students_interval() -> None:
    logs = np.log([1.19, 1.22, 1.20, 1.25])
    found = across_processes([Interval(v, v * 0.998, v * 1.002) for v in np.exp(logs)])
    reach = 3.182 * logs.std(ddof=1) / 2
    assert math.log(found.value) == pytest.approx(logs.mean(), rel=1e-6)
    assert math.log(found.high / found.value) == pytest.approx(reach, rel=1e-3)


def test_points_without_an_uncertainty_weigh_the_same() -> None:
    found = across_processes([Interval(v, v, v) for v in (1.0, 1.1, 1.21)])
    assert found.value == pytest.approx(1.1)
    assert found.low < 1.0 and found.high > 1.21
    assert across_processes([Interval(2.0, 2.0, 2.0)] * 3) == Interval(2.0, 2.0, 2.0)


@pytest.mark.parametrize("apart", [0.0, 0.01, 0.04])
def test_processes_of_unequal_certainty_cover_the_truth_and_come_closer(apart: float) -> None:
    """Beside the plain mean, which one uncertain process takes along."""
    noise = np.random.default_rng(7)
    hits, ours, means = 0, 0.0, 0.0
    for _ in range(600):
        own = noise.choice([0.005, 0.02, 0.2], 7)
        logs = noise.normal(0, apart, 7) + noise.normal(0, 1, 7) * own
        told = own * np.sqrt(noise.chisquare(10, 7) / 10)  # as rounds tell it
        found = across_processes(
            [
                Interval(*np.exp([x, x - 1.96 * s, x + 1.96 * s]))
                for x, s in zip(logs, told, strict=True)
            ]
        )
        hits += found.low <= 1.0 <= found.high
        ours += math.log(found.value) ** 2
        means += logs.mean() ** 2
    assert hits / 600 >= 0.91
    assert ours < means / 3


def test_the_ratio_of_two_estimates_adds_their_errors() -> None:
    quotient = ratio(Interval(2.0, 1.9, 2.1), Interval(1.0, 0.9, 1.1))
    assert quotient.value == 2.0
    assert quotient.low < 1.9 * 1.0
    assert quotient.high > 2.1
    assert quotient.low > 1.9 / 1.1
