"""What a search trial and a race have in common: eager mode, and how a side is timed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from autocompile.settings.config import EAGER, CompileConfig
from autocompile.trial.inspect import telemetry
from autocompile.trial.measure.measure import Timed
from autocompile.trial.phases.phases import Side, make_side
from autocompile.trial.process.channel import Channel
from autocompile.trial.target.load import Target
from autocompile.trial.tasks.probing import inputs_of
from autocompile.trial.verify.precision import demand_close
from autocompile.trial.verify.verifier import Verifier

__all__ = ["eager_and_verifier", "exclusive", "timed"]


def exclusive(channel: Channel, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Nobody beside it on a CPU, where eager's threads wait for each other by spinning.

    Beside a neighbour that compiles, a tenth of a second becomes one, for both.
    """
    return channel.exclusive() if device.type == "cpu" else contextlib.nullcontext()


def eager_and_verifier(
    target: Target,
    request: dict[str, Any],
    device: torch.device,
    numbers: CompileConfig,
    notes: list[str],
) -> tuple[Side, Verifier]:
    """The model as it stands, to be timed against, and who compares with it.

    Args:
        target: built already.
        request: of the trial.
        device: where the target is.
        numbers: eager mode with what the setting changes of numbers by intention.
        notes: gets sentences for the user.
    """
    phase, tolerance = request["phase"], request.get("tolerance")
    draws = inputs_of(target, request, device, 0), inputs_of(target, request, device, 1)
    verifier = Verifier(target, phase, draws, request["seed"], notes, tolerance, numbers)
    if numbers == EAGER:
        return verifier.eager, verifier
    eager = make_side(target, phase, draws[0])
    demand_close(verifier, eager, notes, tolerance, target.check)
    return eager, verifier


def timed(side: Side) -> Timed:
    """A side as it is timed: a recompile inside a block is an error, not a slow sample.

    It is counted afterwards: under torch's stance ``fail_on_recompile`` each call of what was
    compiled takes a microsecond more, which is one percent where calls take a hundred.
    """
    return Timed(side.call, side.restore, side.context if side.is_eager else _counted(side))


def _counted(side: Side) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        before = telemetry.compilations()
        with side.context():
            yield
        if telemetry.compilations() != before:
            reasons = telemetry.dynamo_facts().recompile_reasons
            raise RuntimeError(f"recompiled while it was timed: {(*reasons, 'no reason')[0]}")

    return context
