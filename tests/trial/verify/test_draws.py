"""A compiled side's own random numbers: those that follow the seed pass, and others fail."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import test_side_checks
import torch
from test_side_checks import Layer, a_target, batch, called, changed, judged, refused
from torch import nn

from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial.failures import Failed
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.verify import side_checks as checks
from autocompile.trial.verify.reference import Reference
from autocompile.trial.verify.side_checks import eagers_draws

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")


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


def test_phases_without_random_numbers_pay_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right, sides = Reference.another_side, []
    monkeypatch.setattr(
        Reference, "another_side", lambda *a: sides.append(a) or right(*a)
    )
    monkeypatch.setattr(checks, "_demand_repeats", None)
    assert judged(
        a_target(lambda: nn.Linear(8, 4), batch(4, 8)), "forward", "inductor"
    ).live
    assert len(sides) == 2, "eager mode twice, and no third side for its draws"


def noisy() -> nn.Module:
    """Dropout and noise in a forward pass, beside an output that no draw touches."""

    def then(
        hidden: torch.Tensor, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        noise = nn.functional.dropout(
            hidden + torch.randn_like(hidden), 0.5, training=True
        )
        return noise, hidden

    return Layer(then, 8, 64)


def first_by(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Side], None]:
    return changed(lambda output: (change(output[0]), output[1]))


def unseeded(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator()
    generator.seed()
    return torch.randn(x.shape, generator=generator)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (first_by(unseeded), "same seed"),
        (first_by(lambda x: x * 0 + 1.5), "whatever the seed"),
        (
            changed(lambda y: (y[0], y[1] * 1.01)),
            "['outputs'][1] is off by 0.01",
        ),  # no draw in it
    ],
)
def test_draws_that_cannot_be_right_are_refused(
    lie: Callable[[Side], None], words: str
) -> None:
    outcome, message = refused(a_target(noisy, batch(4, 8)), "forward", "inductor", lie)
    assert outcome is Outcome.WRONG_OUTPUT and words in message, message


def test_a_wrong_program_beside_right_draws_is_found_by_the_side_that_draws_as_eager_does() -> (
    None
):
    """Of the elements' places the distribution says nothing."""
    target = a_target(noisy, batch(4, 8))
    notes: list[str] = []
    draws = target.make_inputs(4), target.make_inputs(4)
    reference = Reference(target, "forward", draws, 0, notes)
    inductor = CompileConfig()
    compiled = make_side(target, "forward", draws[0], inductor)
    subject = called(reference, compiled)
    eagers_draws(reference, subject)
    right = reference.another_side

    def flipped(config: CompileConfig) -> Side:
        side = right(config)
        first_by(lambda x: x.flip(0))(side)
        return side

    reference.another_side = flipped  # type: ignore[method-assign]
    with pytest.raises(Failed, match="is off by"):
        eagers_draws(reference, subject)


def test_weights_that_a_side_with_draws_of_its_own_does_not_follow_are_stale() -> None:
    def lie(side: Side) -> None:
        first = copy.deepcopy(side.model)
        side.call = lambda: first(*side.inputs)

    outcome, _ = refused(a_target(noisy, batch(4, 8)), "forward", "inductor", lie)
    assert outcome is Outcome.STALE_WEIGHTS


def test_few_draws_may_be_the_same_for_some_seeds() -> None:
    def now_and_then(hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return hidden * (torch.rand(()) > 0.5)

    judged(
        a_target(lambda: Layer(now_and_then, 8, 64), batch(4, 8)), "forward", "inductor"
    )


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_a_seed_that_is_ignored_in_some_calls_is_found(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although one of some repeats agrees: the others draw other numbers."""
    calls = itertools.count(offset)

    def lie(side: Side) -> None:
        run = side.run

        def lying() -> Any:
            torch.manual_seed(12345 + next(calls) // 3)
            return run()

        side.run = lying  # type: ignore[method-assign]
        liars.append(side)

    liars: list[Side] = []
    monkeypatch.setattr(
        Reference,
        "draws_otherwise",
        lambda self, side: side in liars and self.is_random,
    )
    target = a_target(
        test_side_checks.dropping,
        batch(4, 8),
        make_optimizer=test_side_checks.momentum,
        loss=lambda y, x: y.square().mean(),
    )
    outcome, _ = refused(target, "train_step", CompileConfig("eager"), lie=lie)
    assert outcome is Outcome.WRONG_OUTPUT
