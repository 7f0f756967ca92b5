"""What eager mode would gain by other numbers, which nothing uses unasked: TF32 and autocast."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator
from typing import Any

import torch

from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import OPTIMIZER_STEP, PHASES
from autocompile.trial.measure.timing import Timer, block, timer_of
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.tasks.steps import inputs_of, timed
from autocompile.trial.values import copy_inputs
from autocompile.trial.verify.outputs import View, copy_view
from autocompile.trial.verify.precision import change_of

_WAYS = (
    ("--precision high", dataclasses.replace(EAGER, precision="high")),
    ("--autocast bfloat16", dataclasses.replace(EAGER, autocast="bfloat16")),
)
_LEAST = 1.15  # times as fast: less is not worth other numbers
_ROUNDS = 5  # the fastest block of each counts, since others may use the machine
_BLOCK_S = 0.02
# Of a pass in eager mode: with longer ones the look would take more than a few seconds.
_LONGEST_S = 0.5


def other_numbers(
    target: Target, phase: str, batch_size: int, seed: int
) -> list[dict[str, Any]]:
    """What an option that changes numbers brings in eager mode, where it brings much.

    Each has the ``option``, the ``speedup`` of a pass, and ``change``: how far results are from
    those without it (relative RMS, or the share of integers that differ).
    """
    if phase == OPTIMIZER_STEP or PHASES[phase].is_update:
        return []  # the first multiplies no matrices; a library makes its updates itself
    if not any(p.dtype is torch.float32 for p in target.model.parameters()):
        return []
    try:
        return [*_gains(target, phase, batch_size, seed)]
    except Exception:  # no error of the target, which runs without these options
        traceback.print_exc()
        return []


def _gains(
    target: Target, phase: str, batch_size: int, seed: int
) -> Iterator[dict[str, Any]]:
    inputs = inputs_of(target, phase, batch_size, seed)
    usual = _side(target, phase, inputs, EAGER)
    view = _first_view(usual, seed)
    timer = timer_of(target.device)
    pass_s = block(timed(usual), 1, timer)
    if pass_s > _LONGEST_S:
        return
    passes = max(1, round(_BLOCK_S / pass_s))
    for option, config in _WAYS:
        side = _side(target, phase, inputs, config)
        change = change_of(_first_view(side, seed), view)
        gain = _speedup(usual, side, passes, timer)
        # Without a change there is no such precision here, and a gain is noise.
        if change and gain >= _LEAST:
            yield {"option": option, "speedup": gain, "change": change}


def _speedup(usual: Side, side: Side, passes: int, timer: Timer) -> float:
    """Of the second over the first, by the fastest of blocks in turns."""
    calls = timed(usual), timed(side)
    rounds = [[block(call, passes, timer) for call in calls] for _ in range(_ROUNDS)]
    usual_s = min(first for first, _ in rounds)
    return usual_s / min(second for _, second in rounds)


def _side(target: Target, phase: str, inputs: Any, config: CompileConfig) -> Side:
    """A side of a setting that wraps the whole step, as autocast does."""
    shares = not PHASES[phase].trains
    model = target.fresh_model(phase, shares_parameters=shares)
    # A copy, since a model may change its inputs in place.
    given = copy_inputs(inputs)
    return make_side(target, phase, given, config, model, is_whole=True)


def _first_view(side: Side, seed: int) -> View:
    seed_everything(seed)
    return copy_view(side.view(side.run()))
