"""Steps that several tasks share: load and feed the target, run eager mode, time a side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.protocol.requests import ProbeRequest, RaceRequest, Request, TrialRequest
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import phase_of
from autocompile.store.record import Step
from autocompile.trial.inspect import environment, telemetry
from autocompile.trial.measure.timing import Timed
from autocompile.trial.phases.phases import make_side
from autocompile.trial.phases.side import Side
from autocompile.trial.process.channel import Channel
from autocompile.trial.target.load import (
    Target,
    build,
    import_target,
    seed_everything,
    split_spec,
)
from autocompile.trial.verify.precision import demand_close
from autocompile.trial.verify.verifier import Verifier

__all__ = [
    "eager_and_verifier",
    "exclusive",
    "home_of",
    "inputs_of",
    "is_prepared",
    "load",
    "timed",
]


def home_of(target: str) -> Path:
    """The folder of a target's file; asked before it is loaded, which may change directory."""
    return Path(split_spec(target)[0]).resolve().parent


def load(request: Request, channel: Channel) -> tuple[Target, torch.device]:
    """Steps ``import`` and ``build``: the same weights in every process."""
    header = request.header
    channel.step(Step.IMPORT)
    device = environment.pick_device(header.device)
    if isinstance(request, ProbeRequest) and is_prepared(request, channel, device):
        channel.toolchain()  # the fork server sees to it meanwhile
    seed_everything(header.seed)
    module = import_target(header.target)
    if isinstance(request, ProbeRequest):
        channel.modules(environment.library_modules())
    channel.step(Step.BUILD)
    target = build(header.target, module)
    target.to(device)
    return target, device


def is_prepared(request: ProbeRequest, channel: Channel, device: torch.device) -> bool:
    """Whether the fork server makes what compiler caches start with."""
    return bool(request.toolchain) and channel.has_fork_server and device.type == "cpu"


def inputs_of(
    target: Target,
    phase: str,
    batch_size: int | None,
    device: torch.device,
    seed: int,
    draw: int = 0,
) -> Any:
    """The inputs of one batch; another ``draw`` gives other values. An optimizer step has none."""
    if not phase_of(phase).has_batch_size:
        return None
    seed_everything(seed + 1000 * (draw + 1))
    inputs = target.inputs(phase, batch_size)
    return pytree.tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, inputs)


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
    demand_close(verifier, eager, notes)
    return eager, verifier


def timed(side: Side) -> Timed:
    """A side for timing, in which a recompile inside a block is an error.

    Recompiles are counted after the block: torch's stance ``fail_on_recompile`` would add a
    microsecond to each compiled call.
    """

    @contextlib.contextmanager
    def counted() -> Iterator[None]:
        before = telemetry.compilations()
        with side.context():
            yield
        if telemetry.compilations() != before:
            reasons = telemetry.dynamo_facts().recompile_reasons
            raise RuntimeError(f"recompiled while it was timed: {(*reasons, 'no reason')[0]}")

    return Timed(side.call, side.restore, side.context if side.is_eager else counted)
