"""The covering array: that it covers, that it is small, and that no exclusion hides a gap."""

from __future__ import annotations

import itertools

import pytest
from axes import AXES, IMPOSSIBLE
from pairs import Impossible, covering, every_pair, excluded, pairs_of

EXCLUDED = excluded(IMPOSSIBLE)
CELLS = covering(AXES, EXCLUDED)


def test_every_pair_that_is_possible_is_in_a_cell() -> None:
    covered = set().union(*map(pairs_of, CELLS))
    assert set(every_pair(AXES)) - covered == set(EXCLUDED)
    assert not covered & set(EXCLUDED)


def test_each_cell_has_a_value_of_each_axis() -> None:
    for cell in CELLS:
        assert list(cell) == list(AXES)
        assert all(value in AXES[axis] for axis, value in cell.items())


def test_there_are_few_cells_and_always_the_same() -> None:
    assert 25 <= len(CELLS) <= 60
    assert covering(AXES, EXCLUDED) == CELLS


def test_what_is_impossible_is_about_values_that_there_are_and_has_a_reason() -> None:
    assert set(EXCLUDED) <= set(every_pair(AXES))
    assert all(rule.reason for rule in IMPOSSIBLE)


def test_a_pair_that_no_cell_can_have_is_an_error_unless_a_rule_names_it() -> None:
    axes = {"a": ("1", "2"), "b": ("1", "2"), "c": ("1", "2")}
    rules = [
        Impossible("a", ("1",), "b", ("1",), "why"),
        Impossible("c", ("1",), "b", ("2",), "why"),
    ]
    with pytest.raises(
        ValueError, match=r"no cell can have \[\('a', '1'\), \('c', '1'\)"
    ):
        covering(axes, excluded(rules))


def test_without_exclusions_a_cell_is_made_for_each_pair_of_the_two_longest_axes() -> (
    None
):
    axes = {"a": ("1", "2", "3"), "b": ("1", "2", "3"), "c": ("1", "2")}
    cells = covering(axes, {})
    assert len(cells) == 9
    assert {(c["a"], c["b"]) for c in cells} == set(itertools.product("123", "123"))
