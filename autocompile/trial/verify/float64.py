"""Replaces casts to narrow floating types by casts to float64."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["WideCasts"]

_CASTS = (torch.ops.aten._to_copy.default,)


class WideCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the context, a cast to any floating type returns float64.

    Some code casts by design (Muon orthogonalizes in bfloat16, a norm computes in float32). On
    double inputs it would still round like eager, and could not serve as a float64 reference.
    """

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        dtype = kwargs.get("dtype")
        if function in _CASTS and dtype is not None and dtype.is_floating_point:
            kwargs["dtype"] = torch.float64
        return function(*args, **kwargs)
