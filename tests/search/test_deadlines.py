"""When the parts of a run must end, by a clock of the test."""

from __future__ import annotations

import math

import pytest
from conftest import Clock

from autocompile.search.deadlines import NO_DEADLINES, Deadlines


def deadlines(total_s: float, spent_s: float = 0.0) -> Deadlines:
    clock = Clock()
    made = Deadlines(total_s, clock.monotonic(), clock.monotonic)
    clock.work(spent_s)
    return made


def test_each_part_ends_before_the_next_and_all_of_them_before_the_budget() -> None:
    made = deadlines(100.0)
    assert 100.0 > made.left_s > made.races_left_s > made.search_left_s(10.0)
    assert made.search_left_s(10.0) == pytest.approx(made.races_left_s - 10.0)
    assert made.trial_s(10.0, 0.0) < made.search_left_s(10.0)
    assert made.trial_s(10.0, 4.0) == pytest.approx(made.trial_s(10.0, 0.0) - 4.0)


def test_a_part_is_kept_back_for_races_and_no_more_than_is_needed() -> None:
    made = deadlines(100.0)
    assert made.search_left_s(10.0) == pytest.approx(83, abs=1)
    assert made.search_left_s(80.0) == pytest.approx(53, abs=1)
    assert deadlines(100.0, spent_s=70).search_left_s(80.0) < 0


def test_a_trial_is_ended_for_the_races_that_are_needed_and_not_much_before() -> None:
    assert not deadlines(100.0, spent_s=82).is_search_over(10.0)
    assert deadlines(100.0, spent_s=82).trial_s(10.0, 0.0) < 0, "none begins"
    assert deadlines(100.0, spent_s=88).is_search_over(10.0)
    assert not deadlines(100.0, spent_s=88).is_over()


@pytest.mark.parametrize("total_s", [1e-9, 9.0, 90.0, 3600.0])
def test_what_runs_is_ended_so_early_that_a_report_fits_into_the_budget(
    total_s: float,
) -> None:
    kept_s = total_s - deadlines(total_s).left_s
    assert 0 < kept_s <= 2.0 and kept_s <= 0.05 * total_s + 1e-12
    assert deadlines(total_s, spent_s=total_s).is_over()


def test_without_a_budget_nothing_ends() -> None:
    assert NO_DEADLINES.left_s == math.inf
    assert NO_DEADLINES.trial_s(1e9, 1e9) == math.inf
    assert not NO_DEADLINES.is_over() and not NO_DEADLINES.is_search_over(1e9)


def test_the_end_moves_so_that_trials_fit_and_not_without_bound() -> None:
    made = deadlines(90.0, spent_s=30)
    assert not made.make_room(20.0, 15.0), "they fit, and so do the first races"
    assert made.total_s == 90.0
    assert made.make_room(100.0, 5.0)
    assert made.trial_s(5.0, 0.0) >= 100.0
    assert made.make_room(1e4, 5.0)
    assert made.total_s == 6 * 90.0
    assert not NO_DEADLINES.make_room(1e4, 5.0)


def test_the_end_comes_nearer_where_trials_take_less_than_was_expected() -> None:
    made = deadlines(90.0, spent_s=30)
    assert made.make_room(300.0, 5.0)
    assert not made.make_room(60.0, 5.0)
    assert made.total_s is not None and 90.0 < made.total_s < 130.0
    assert not made.make_room(1.0, 5.0)
    assert made.total_s == 90.0, "never before the usual end"


def test_races_move_the_end_up_to_their_share_and_not_by_themselves() -> None:
    made = deadlines(90.0, spent_s=30)
    assert made.make_room(20.0, 40.0), "without races the trials are no answer"
    assert made.total_s is not None and 93.0 < made.total_s < 110.0
    assert made.make_room(100.0, 1e4)
    assert 147.0 / 0.6 < made.total_s < 300.0
    late = deadlines(90.0, spent_s=95)
    assert not late.make_room(0.0, 200.0), "as many as asked for have been compared"
