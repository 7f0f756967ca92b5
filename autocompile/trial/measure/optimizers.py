"""Times the implementations of a target's optimizer by themselves, without a model's passes.

A training step is forward, backward and the optimizer's step, one after the other, so the fastest
implementation alone is the fastest in any step whose model is compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from autocompile.runtime.optimizers import implementations, set_implementation
from autocompile.settings.phases import LEARNER_UPDATE
from autocompile.trial.measure.timing import Timed, block
from autocompile.trial.target.target import Target

__all__ = ["seconds_by_implementation"]

_WARM_STEPS = 3  # the first makes the state, the second finds it
_BLOCK_S, _BLOCKS = 0.01, 20
_MAX_S = 2.0  # of one implementation


def seconds_by_implementation(
    target: Target, phase: str, synchronize: Callable[[], None]
) -> dict[str, float]:
    """Seconds of an optimizer step of a phase by implementation, ``default`` being the target's.

    One set of parameters, gradients and states is held at a time. Empty where there is no choice.
    """
    model = target.fresh_model(phase)
    every = [implementations(optimizer) for optimizer, _ in _optimizers(target, phase, model)]
    common = [n for n in (every[0] if every else []) if all(n in found for found in every)]
    names = ["default", *common] if common else []
    return {name: _seconds(target, phase, model, name, synchronize) for name in names}


def _optimizers(target: Target, phase: str, model: torch.nn.Module) -> list[tuple[Any, Any]]:
    """Fresh optimizers of a phase, each with the parameters that it steps."""
    if target.make_learner and phase == LEARNER_UPDATE:
        made = target.make_learner(model).optimizers
    else:
        made = [target.make_optimizer(model)]
    return [(o, [p for group in o.param_groups for p in group["params"]]) for o in made]


def _seconds(
    target: Target,
    phase: str,
    model: torch.nn.Module,
    name: str,
    synchronize: Callable[[], None],
) -> float:
    steps = []
    for optimizer, parameters in _optimizers(target, phase, model):
        for p in parameters:
            p.grad = torch.full_like(p, 1e-3)
        set_implementation(optimizer, name)
        steps.append(optimizer.step)
    side = Timed(lambda: [step() for step in steps], lambda: None, contextlib.nullcontext)
    once_s = min(block(side, 1, synchronize) for _ in range(_WARM_STEPS))
    calls = max(1, round(_BLOCK_S / once_s))
    blocks = max(1, min(_BLOCKS, round(_MAX_S / (calls * once_s))))
    # The least of many short blocks: a neighbour slows some of them, and nothing makes one faster.
    found = min(block(side, calls, synchronize) for _ in range(blocks))
    for p in model.parameters():
        p.grad = None
    return found
