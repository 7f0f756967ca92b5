"""A workload: calls as they come, from a function, and inputs beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autocompile.errors import TargetError
from autocompile.store.recorded_calls import MOST
from autocompile.trial.model import calls
from autocompile.trial.model.calls import Calls


def inputs(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {
        "ids": torch.randint(0, 9, (rows, length)),
        "mask": torch.ones(rows, length),
    }


def test_a_function_that_never_ends_gives_its_first_calls() -> None:
    def get_calls() -> Iterator[Any]:
        while True:
            yield torch.ones(2)

    assert len(calls.from_function(get_calls, "model.py")) == MOST


def test_a_function_without_calls_is_one_paragraph() -> None:
    with pytest.raises(TargetError, match="yields nothing"):
        calls.from_function(lambda: [], "model.py")


def test_a_function_that_fails_names_the_call() -> None:
    def get_calls() -> Iterator[Any]:
        yield torch.ones(2)
        raise KeyError("ids")

    with pytest.raises(TargetError, match="fails at call 1"):
        calls.from_function(get_calls, "model.py")


def test_other_values_keep_the_shapes() -> None:
    first, other = (
        Calls([inputs(2, 8), inputs(2, 37)]),
        Calls([inputs(2, 5), inputs(2, 9)]),
    )
    mixed = calls.other_values(first, other)
    assert [*map(calls.shape_of, mixed)] == [*map(calls.shape_of, first)]
    assert not torch.equal(mixed[1]["ids"], first[1]["ids"])
    assert torch.equal(mixed[1]["ids"].sort().values.sum(), first[1]["ids"].sum())
    same = Calls([inputs(2, 8), inputs(2, 37)])
    assert calls.other_values(first, same) is same


def test_calls_of_one_kind_are_found() -> None:
    sizes = (8, 37, 8, 8)
    assert calls.kinds([inputs(2, n) for n in sizes]) == [[0, 2, 3], [1]]
    assert calls.in_words(inputs(2, 37)) == "2×37"
    assert calls.kinds([(torch.ones(2), 1), (torch.ones(2), 2)]) == [[0], [1]]


def test_a_size_between_two_calls_shortens_what_goes_together() -> None:
    made = calls.between([inputs(2, n) for n in (8, 37, 16)])
    assert made is not None
    assert made["ids"].shape == made["mask"].shape == (2, 22)


@pytest.mark.parametrize(
    "sizes",
    [[(2, 8)], [(2, 8), (2, 8)], [(1, 2), (1, 3)]],
    ids=["one", "alike", "nothing free"],
)
def test_no_size_between_is_none(sizes: list[tuple[int, int]]) -> None:
    assert calls.between([inputs(*size) for size in sizes]) is None


def test_calls_of_other_arguments_have_nothing_between() -> None:
    assert calls.between([inputs(2, 8), {"ids": torch.ones(2, 9)}]) is None
