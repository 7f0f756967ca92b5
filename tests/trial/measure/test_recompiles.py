"""Reasons of recompiles in plain words, of real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autocompile.trial.measure import telemetry
from autocompile.trial.measure.recompiles import reason_in_words


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


def scaled(x: torch.Tensor, by: Any) -> torch.Tensor:
    return x * by


def chosen(x: torch.Tensor, flag: Any) -> torch.Tensor:
    if flag is None:
        return x + 1
    return x * 2 if flag else x * 3


def called(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    return torch.sum(module(x))


def named(values: dict[str, torch.Tensor]) -> torch.Tensor:
    return sum(values.values(), torch.zeros(2))


def summed(xs: list[torch.Tensor]) -> torch.Tensor:
    return sum(xs, torch.zeros(2))


X = torch.ones(2)
CASES: dict[str, tuple[Callable[[], Any], list[tuple[Any, ...]], str]] = {
    "size": (
        lambda: scaled,
        [(torch.ones(3), 1), (torch.ones(4), 1)],
        "axis 0 of x has size 3",
    ),
    "dtype": (lambda: scaled, [(X, 1), (X.double(), 1)], "x is float, then double"),
    "attribute": (Counts, [(X,), (X,)], "self.calls changes"),
    "argument": (lambda: scaled, [(X, 0.5), (X, 0.7)], "the number by changes"),
    "gradients": (
        lambda: scaled,
        [(X, 1), (torch.ones(2, requires_grad=True), 1)],
        "x requires gradients in some calls only",
    ),
    "flag": (
        lambda: chosen,
        [(X, True), (X, False)],
        "flag is true in some calls and false in",
    ),
    "absent": (lambda: chosen, [(X, None), (X, 2)], "flag is None in some calls only"),
    "rank": (
        lambda: scaled,
        [(X, 1), (torch.ones(2, 2), 1)],
        "x has 1 dimensions, then 2",
    ),
    "layout": (
        lambda: scaled,
        [(torch.ones(2, 2), 1), (torch.ones(4, 2)[::2], 1)],
        "pass x.contiguous()",
    ),
    "one": (lambda: scaled, [(torch.ones(1), 1), (X, 1)], "1 is a constant always"),
    "class": (
        lambda: called,
        [(X, nn.ReLU()), (X, nn.Tanh())],
        "of another class than ReLU",
    ),
    "length": (lambda: summed, [([X],), ([X, X],)], "xs has another length than 1"),
    "key": (
        lambda: named,
        [({"a": X},), ({"b": X},)],
        "values has other keys ('a' in some",
    ),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    telemetry.reset_dynamo("eager")
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("case", CASES)
def test_a_real_reason_is_named(case: str) -> None:
    make, calls, words = CASES[case]
    compiled = torch.compile(make(), backend="eager", dynamic=False)
    for call in calls:
        compiled(*call)
    (reason,) = telemetry.recompile_reasons()
    assert words in reason


def test_gradients_that_come_and_go_are_named() -> None:
    compiled = torch.compile(scaled, backend="eager")
    compiled(X, 2)
    with torch.no_grad():
        compiled(X, 2)
    (reason,) = telemetry.recompile_reasons()
    assert "with gradients and without" in reason


def test_autocast_that_comes_and_goes_is_named() -> None:
    compiled = torch.compile(scaled, backend="eager")
    compiled(X, 2)
    with torch.autocast("cpu", torch.bfloat16):
        compiled(X, 2)
    (reason,) = telemetry.recompile_reasons()
    assert "under autocast and without" in reason


def test_a_learning_rate_is_named() -> None:
    reason = "0/1: self.param_groups[0]['lr'] == 0.1   # optimizer.step()"
    assert reason_in_words(reason) == (
        "the learning rate changes: pass it as a tensor, lr=torch.tensor(...)"
    )


def test_an_unknown_reason_is_given_as_it_is() -> None:
    assert (
        reason_in_words("3/0: hasattr(self, 'x')   # x.py:3 in f")
        == "hasattr(self, 'x') (x.py:3)"
    )
