"""Eager mode in float64, the reference that separates rounding from errors."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.trial.phases.phases import make_side
from autocompile.trial.target.load import Target, seed_everything
from autocompile.trial.target.state import copy_inputs
from autocompile.trial.verify.float64 import WideCasts
from autocompile.trial.verify.outputs import View, copy_view

__all__ = ["in_float64"]


def in_float64(
    target: Target,
    phase: str,
    model: torch.nn.Module,
    draws: tuple[Any, Any],
    seed: int,
    calls: Iterable[int],
) -> View | None:
    """Eager's view of the last call in float64; None if the model cannot run in float64.

    Args:
        target: builds the side.
        phase: the unit of work.
        model: has the weights to start from.
        draws: two batches of inputs; call ``n`` uses batch ``n % 2``.
        seed: call ``n`` uses ``seed + n``.
        calls: the numbers of the calls.
    """
    try:
        wide = copy.deepcopy(model).double()
        wider = dataclasses.replace(target, model=wide, inference_model=None, training_model=None)
        side = make_side(wider, phase, None)
        view: View = {}
        for call in calls:
            side.inputs = _double(copy_inputs(draws[call % 2]))
            seed_everything(seed + call)
            with WideCasts():  # type: ignore[no-untyped-call]
                view = side.view(side.run())
        return copy_view(view)
    except Exception:
        return None


def _double(tree: Any) -> Any:
    return pytree.tree_map(
        lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, tree
    )
