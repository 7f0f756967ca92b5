"""What eager mode would gain by TF32 or autocast is seen before anything is compiled."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from autocompile.trial.model.target import Target
from autocompile.trial.tasks.other_numbers import other_numbers


class Waiting(torch.nn.Module):
    """It waits for ever shorter, the lower the precision is; results are a little off then."""

    def __init__(self, float32_s: float, autocast_s: float, off: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.seconds, self.off = (float32_s, autocast_s), off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_low = torch.is_autocast_enabled("cpu")
        time.sleep(self.seconds[is_low])
        return x * self.weight * (1 + self.off * is_low)


def of(model: torch.nn.Module, phase: str = "forward") -> list[dict[str, Any]]:
    target = Target("functions", model, lambda batch_size: (torch.ones(batch_size, 4),))
    return other_numbers(target, phase, 2, 0)


@pytest.mark.parametrize("phase", ["forward", "train_step"])
def test_a_precision_that_makes_eager_mode_much_faster_is_named_with_its_change(
    phase: str,
) -> None:
    (found,) = of(Waiting(0.03, 0.01, off=0.01), phase)
    assert found["option"] == "--autocast bfloat16"
    assert 1.8 < found["speedup"] < 3.5
    assert found["change"] == pytest.approx(0.01, rel=0.1)


def test_a_small_gain_is_not_named_nor_one_without_other_numbers() -> None:
    assert of(Waiting(0.1, 0.096, off=0.01)) == []
    assert of(Waiting(0.03, 0.01, off=0.0)) == []


def test_a_model_without_float32_and_a_slow_one_are_not_looked_at() -> None:
    assert of(Waiting(0.03, 0.01, off=0.01).to(torch.bfloat16)) == []
    began = time.monotonic()
    assert of(Waiting(0.6, 0.1, off=0.01)) == []
    assert time.monotonic() - began < 5.0


def test_a_model_that_fails_in_autocast_is_no_error() -> None:
    class Refuses(Waiting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_autocast_enabled("cpu")
            return super().forward(x)

    assert of(Refuses(0.03, 0.01, off=0.01)) == []
