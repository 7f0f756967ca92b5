"""Random numbers of a compiled side's own: plausible ones pass, and each kind of wrong one fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autocompile.record import Outcome
from autocompile.trial.phases import Side
from autocompile.trial.random_draws import Draws, implausible, wrong_length
from tests.test_trial_judge import a_target, batch, dropping, judged, momentum, refused

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")


def rescaled(keep: float) -> Callable[[Side], None]:
    """Its output is as if dropout forgot to scale by 1 / (1 - p), on average."""

    def lie(side: Side) -> None:
        right = side.call
        side.call = lambda: right() * keep

    return lie


def test_what_inductor_draws_is_accepted_and_not_compiled_with_fallback() -> None:
    seen = []

    def look(side: Side) -> None:
        import torch._inductor.config

        right = side.call

        def call() -> Any:
            seen.append(torch._inductor.config.fallback_random)
            return right()

        side.call = call

    target = a_target(noisy, batch(4, 8))
    verdict = judged(target, "forward", "inductor", lie=look)
    assert verdict.live is True and not any(seen)
    assert any("draws random numbers" in note for note in verdict.notes)


class Noisy(nn.Module):
    """Dropout and noise in a forward pass, beside an output that no draw touches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.linear(x)
        noise = nn.functional.dropout(hidden + torch.randn_like(hidden), 0.5, training=True)
        return noise, hidden


def noisy() -> nn.Module:
    return Noisy()


def test_a_training_step_with_dropout_passes_with_inductors_own_numbers() -> None:
    target = a_target(dropping, batch(16, 8), make_optimizer=momentum)
    assert judged(target, "train_step", "inductor").graphs >= 1


def first_by(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Side], None]:
    def lie(side: Side) -> None:
        right = side.call

        def call() -> Any:
            first, second = right()
            return change(first), second

        side.call = call

    return lie


def frozen_draw(x: torch.Tensor, kept: dict[int, torch.Tensor] = {}) -> torch.Tensor:  # noqa: B006
    return x * 0 + 1.5


def unseeded(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator()
    generator.seed()
    return torch.randn(x.shape, generator=generator)


LIES = {
    "twice too large": (lambda x: x * 2, "standard deviation"),
    "moved": (lambda x: x + 5, "mean"),
    "without dropout": (lambda x: torch.where(x == 0, 1.0, x), ""),
    "always the same": (frozen_draw, "the same whatever the seed"),
    "not repeated": (unseeded, "same seed"),
    "infinite": (lambda x: x / 0, "not finite"),
    "another type": (lambda x: x.double(), "float64"),
}


@pytest.mark.parametrize("name", LIES)
def test_draws_that_cannot_be_right_are_refused(name: str) -> None:
    change, words = LIES[name]
    outcome, message = refused(a_target(noisy, batch(4, 8)), "forward", "inductor", first_by(change))
    assert outcome is Outcome.WRONG_OUTPUT and words in message, message


def test_what_no_draw_touches_is_compared_by_value() -> None:
    def lie(side: Side) -> None:
        right = side.call

        def call() -> Any:
            first, second = right()
            return first, second * 1.01

        side.call = call

    message = refused(a_target(noisy, batch(4, 8)), "forward", "inductor", lie)[1]
    assert "['outputs'][1] is off by 0.01" in message
