"""Operators of a call are counted, the backward pass and the optimizer included."""

from __future__ import annotations

import pytest
import torch

from autocompile.trial.model.target import Target
from autocompile.trial.tasks.operators import operators_of


def of(phase: str, layers: int) -> int | None:
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        for _ in range(layers)
    ]
    target = Target(
        "functions", torch.nn.Sequential(*blocks), lambda size: (torch.ones(size, 4),)
    )
    return operators_of(target, phase, 2, 0)


def test_a_layer_is_a_product_and_an_activation() -> None:
    assert of("forward", 3) == 6


@pytest.mark.parametrize("phase", ["forward", "train_step"])
def test_twice_as_many_layers_are_about_twice_as_many_operators(phase: str) -> None:
    few, many = of(phase, 8), of(phase, 16)
    assert few is not None
    assert many is not None
    assert 1.7 < many / few < 2.1


def test_a_training_step_has_more_operators_than_its_forward_pass() -> None:
    forward, step = of("forward", 8), of("train_step", 8)
    assert forward is not None
    assert step is not None
    assert step > 3 * forward


def test_what_cannot_be_counted_is_not_known() -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not today")

    target = Target("functions", Fails(), lambda size: (torch.ones(size, 4),))
    assert operators_of(target, "forward", 2, 0) is None
