"""Common parts of a search trial and a race: the eager side, and how a side is timed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from autocompile.protocol.requests import RaceRequest, TrialRequest
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
    """Exclusive use on a CPU, where eager's threads wait for each other by busy-waiting.

    Next to a compiling trial, both would become up to ten times slower.
    """
    return channel.exclusive() if device.type == "cpu" else contextlib.nullcontext()


def eager_and_verifier(
    target: Target,
    request: TrialRequest | RaceRequest,
    device: torch.device,
    numbers: CompileConfig,
    notes: list[str],
) -> tuple[Side, Verifier]:
    """The unchanged eager side to time against, and the verifier.

    Args:
        target: the built target.
        request: of the trial.
        device: where the target is.
        numbers: eager mode with the setting's precision.
        notes: gets sentences for the user.
    """
    phase, size = request.phase, request.batch_size
    seed, tolerance = request.header.seed, request.header.tolerance
    first = inputs_of(target, phase, size, device, seed)
    draws = first, inputs_of(target, phase, size, device, seed, draw=1)
    verifier = Verifier(target, phase, draws, seed, notes, tolerance, numbers)
    if numbers == EAGER:
        return verifier.eager, verifier
    eager = make_side(target, phase, first)
    demand_close(verifier, eager, notes, tolerance, target.check)
    return eager, verifier


def timed(side: Side) -> Timed:
    """A side for timing, in which a recompile inside a block is an error.

    Recompiles are counted after the block: torch's stance ``fail_on_recompile`` would add a
    microsecond to each compiled call.
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
