"""How many operators a call runs in eager mode, which says how long compiling it takes."""

from __future__ import annotations

import traceback
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from autocompile.trial.model.sides import make_side
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.tasks.steps import inputs_of


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what computes something: a view of a tensor is no work for a compiler."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        schema = getattr(function, "_schema", None)
        is_view = schema is not None and (
            any(r.alias_info for r in schema.returns) and not schema.is_mutable
        )
        self.count += not is_view
        return function(*args, **(kwargs or {}))


def operators_of(target: Target, phase: str, batch_size: int, seed: int) -> int | None:
    """Operators of one pass of a phase, its backward pass included; None if it cannot be told."""
    try:
        inputs = inputs_of(target, phase, batch_size, seed)
        model = target.fresh_model(phase, shares_parameters=True)
        side = make_side(target, phase, inputs, model=model)
        seed_everything(seed)
        counting = _Counting()
        with counting:
            side.run()
        return counting.count
    except Exception:  # a mode of the user's own may not bear another one
        traceback.print_exc()
        return None
