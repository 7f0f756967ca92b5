"""Eager mode in float64, the reference that separates rounding from errors."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from autocompile.trial.phases.phases import make_side
from autocompile.trial.phases.side import copy_inputs
from autocompile.trial.target.target import Target, seed_everything
from autocompile.trial.verify.outputs import View, copy_view

__all__ = ["in_float64"]


class _WideCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the context, a cast to any floating type returns float64.

    Some code casts by design (Muon orthogonalizes in bfloat16, a norm computes in float32). On
    double inputs it would still round like eager, and could not serve as a float64 reference.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        dtype = kwargs.get("dtype")
        if function is torch.ops.aten._to_copy.default and dtype and dtype.is_floating_point:
            kwargs["dtype"] = torch.float64
        return function(*args, **kwargs)


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
            side.inputs = pytree.tree_map(_double, copy_inputs(draws[call % 2]))
            seed_everything(seed + call)
            with _WideCasts():  # type: ignore[no-untyped-call]
                view = side.view(side.run())
        return copy_view(view)
    except Exception:
        return None


def _double(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
