"""Steps that several tasks share: load and feed the target, and time a side."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch

from autocompile.errors import TargetError
from autocompile.protocol.events import EventName
from autocompile.protocol.requests import ProbeRequest, Request
from autocompile.runtime import ranks
from autocompile.settings.phases import phase_of
from autocompile.store.record import Outcome, Step
from autocompile.trial.channel import Channel
from autocompile.trial.failures import Failed
from autocompile.trial.measure import environment, profiled, telemetry, timing
from autocompile.trial.measure.timing import Timed
from autocompile.trial.model.built import built_for
from autocompile.trial.model.calls import Calls, first_call, other_values, shape_of
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.target import Target, seed_everything


def load(request: Request, channel: Channel) -> Target:
    """Steps ``import`` and ``build``: the same weights in every process.

    Where the fork server has built the target, nothing is left of them to do.
    """
    header = request.header
    channel.step(Step.IMPORT)
    device = ranks.here().device(environment.pick_device(header.device))
    if isinstance(request, ProbeRequest) and is_prepared(request, channel, device):
        channel.send(EventName.TOOLCHAIN)  # the fork server sees to it meanwhile
    if (target := built_for(header)) is None:
        seed_everything(header.seed)
        module = import_target(header.target)
    if isinstance(request, ProbeRequest):
        channel.send(EventName.MODULES, names=environment.library_modules())
    channel.step(Step.BUILD)
    if target is None:
        target = build(header.target, module, header.calls)
    target.to(device)
    target.strategy = header.strategy if ranks.here().are_several else ""
    return target


def is_prepared(request: ProbeRequest, channel: Channel, device: torch.device) -> bool:
    """Whether the fork server makes what compiler caches start with."""
    return bool(request.toolchain) and channel.has_fork_server and device.type == "cpu"


def inputs_of(
    target: Target, phase: str, batch_size: int | None, seed: int, draw: int = 0
) -> Any:
    """The inputs of one batch; another ``draw`` gives other values. An optimizer step has none."""
    if not phase_of(phase).has_batch_size:
        return None
    # Ranks have data of their own: else a missing average of gradients would not be seen.
    seed_everything(seed + 1000 * (draw + 1) + ranks.here().seed)
    inputs = target.inputs(phase, batch_size)
    _demand_same_shapes(inputs)
    if draw and isinstance(inputs, Calls):
        return other_values(inputs_of(target, phase, batch_size, seed), inputs)
    return inputs


def _demand_same_shapes(inputs: Any) -> None:
    """Raise a TargetError where ranks have inputs of other shapes, or another number of calls."""
    calls = inputs if isinstance(inputs, Calls) else (inputs,)
    own = [str(shape_of(each)) for each in calls]
    if apart := ranks.here().agree((own, ""), _apart)[1]:
        raise TargetError(
            "ranks have inputs of other shapes, and a step is timed with one",
            apart,
            hint="draw sizes without torch's, NumPy's and Python's seeds, which differ by rank",
        )


def _apart(given: Sequence[tuple[list[str], str]]) -> tuple[list[str], str]:
    """Rank 0's shapes, and in words where another rank's differ."""
    first, *others = (shapes for shapes, _ in given)
    for other in others:
        for mine, theirs in zip_longest(first, other, fillvalue="no call"):
            if mine != theirs:
                return first, f"one has {mine}, another {theirs}"
    return first, ""


def timed(side: Side) -> Timed:
    """A side for timing, in which a recompile inside a block is an error.

    Recompiles are counted after the block: torch's stance ``fail_on_recompile`` would add a
    microsecond to each compiled call.
    """

    @contextlib.contextmanager
    def counted() -> Iterator[None]:
        before, side.is_timed = telemetry.compilations(), True
        try:
            with side.context():
                yield
        finally:
            side.is_timed = False
        if not side.is_eager and telemetry.compilations() != before:
            why = ("no reason is known", *telemetry.recompile_reasons())[-1]
            raise Failed(
                Outcome.RECOMPILE_LIMIT, f"recompiled while it was timed: {why}"
            )

    calls = len(side.inputs) if isinstance(side.inputs, Calls) else 1
    return Timed(side.call, side.restore, counted, calls)


def given_back_by_eager(target: Target, phase: str, inputs: Any) -> dict[str, float]:
    """What eager calls on a CPU cost while glibc gives freed memory back to the system."""
    with _eager_for_a_moment(target, phase, inputs) as side:
        return timing.cost_of_giving_back(timed(side))


def profile_of_eager(target: Target, phase: str, inputs: Any) -> dict[str, Any]:
    """What one eager call does (:func:`autocompile.trial.measure.profiled.profile`)."""
    with _eager_for_a_moment(target, phase, inputs) as side:
        return profiled.profile(side.run, target.device)


@contextlib.contextmanager
def _eager_for_a_moment(target: Target, phase: str, inputs: Any) -> Iterator[Side]:
    """A side that makes the first call, of which nothing is left afterwards."""
    model = target.fresh_model(phase, shares_parameters=True)
    side = make_side(target, phase, first_call(inputs), model=model)
    side.keep()
    yield side
    side.restore()
    del side, model
    gc.collect()  # views of a side refer to it
