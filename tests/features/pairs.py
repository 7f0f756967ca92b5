"""Few cells that contain every possible pair of values of two axes: a covering array.

It is greedy and deterministic. Each cell begins with the first pair that no cell has yet, and each
further axis takes the value with most new pairs. A value that would leave another axis without one
is taken back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Axes = Mapping[str, Sequence[str]]
Cell = Mapping[str, str]
Value = tuple[str, str]
"""The name of an axis, and one of its values."""
Pair = frozenset[Value]


@dataclass(frozen=True)
class Impossible:
    """Values of one axis that never meet some of another, and why."""

    axis: str
    values: tuple[str, ...]
    other: str
    others: tuple[str, ...]
    reason: str

    def pairs(self) -> Iterator[Pair]:
        for one, two in itertools.product(self.values, self.others):
            yield frozenset({(self.axis, one), (self.other, two)})


def excluded(rules: Sequence[Impossible]) -> dict[Pair, str]:
    """The reason of each pair that is impossible."""
    return {pair: rule.reason for rule in rules for pair in rule.pairs()}


def every_pair(axes: Axes) -> list[Pair]:
    """All pairs of values of two axes, in the order of the axes."""
    return [
        frozenset({(one, first), (two, second)})
        for one, two in itertools.combinations(axes, 2)
        for first, second in itertools.product(axes[one], axes[two])
    ]


def pairs_of(cell: Cell) -> set[Pair]:
    """The pairs that a cell contains."""
    return {frozenset(two) for two in itertools.combinations(cell.items(), 2)}


def covering(axes: Axes, impossible: Mapping[Pair, str]) -> list[Cell]:
    """Cells that together contain every pair which is not impossible.

    Raises:
        ValueError: a pair that no rule excludes is in no cell: a rule with its reason is missing.
    """
    left = dict.fromkeys(p for p in every_pair(axes) if p not in impossible)
    cells: list[Cell] = []
    while left:
        pair = next(iter(left))
        cell = _completed(dict(sorted(pair)), axes, impossible, left)
        if cell is None:
            raise ValueError(f"no cell can have {sorted(pair)}")
        cell = {axis: cell[axis] for axis in axes}
        cells.append(cell)
        for each in pairs_of(cell):
            left.pop(each, None)
    return cells


def _completed(
    cell: dict[str, str],
    axes: Axes,
    impossible: Mapping[Pair, str],
    left: Mapping[Pair, None],
) -> dict[str, str] | None:
    """The cell with a value of each axis; None if there is no such cell."""
    # An axis with few values that fit is filled first, so that it is not left without any.
    fitting = {
        axis: [v for v in axes[axis] if _fits((axis, v), cell, impossible)]
        for axis in axes
        if axis not in cell
    }
    if not fitting:
        return cell
    axis = min(fitting, key=lambda name: len(fitting[name]))
    by_gain = sorted(fitting[axis], key=lambda v: -_gain((axis, v), cell, left))
    for value in by_gain:
        found = _completed({**cell, axis: value}, axes, impossible, left)
        if found is not None:
            return found
    return None


def _fits(value: Value, cell: Cell, impossible: Mapping[Pair, str]) -> bool:
    return not any(frozenset({value, other}) in impossible for other in cell.items())


def _gain(value: Value, cell: Cell, left: Mapping[Pair, None]) -> int:
    """How many pairs it adds that no cell has yet."""
    return sum(frozenset({value, other}) in left for other in cell.items())
