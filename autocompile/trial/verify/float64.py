"""Casts that stay in double precision, for what casts by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["WideCasts"]

_CASTS = (torch.ops.aten._to_copy.default,)


class WideCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, a cast to any floating type gives float64.

    Some code casts to a narrow type by design (Muon orthogonalizes in bfloat16, a norm computes in
    float32): run on double inputs, it would round as eager does, and say nothing about rounding.
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
