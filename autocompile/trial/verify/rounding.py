"""Modes in which eager rounds less (float64 throughout), or otherwise at random."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = ("convolution", "convolution_backward", "mm", "addmm", "bmm", "baddbmm")
_BIASES = {
    "addmm": 0,
    "baddbmm": 0,
    "convolution": 2,
}  # arguments that are added in float32
_SHORT_SUMS = tuple(f"allow_{x}16_reduced_precision_reduction" for x in ("bf", "fp"))
# Operations that choose, move or make numbers and round none, without underscores at the ends.
_EXACT = """ abs amax amin bernoulli cat ceil clamp clamp_max clamp_min clone constant_pad_nd copy
    copysign cummax cummin embedding fill flip floor full_like gather heaviside hardtanh index
    index_put index_select masked_fill masked_scatter masked_select max maximum median min minimum
    mode nan_to_num neg nextafter relu repeat roll round scatter select_backward select_scatter sgn
    sign slice_backward slice_scatter sort stack take threshold threshold_backward topk tril triu
    trunc unsafe_view where """
_MAKES = (
    "new_",
    "rand",
    "zeros",
    "ones",
    "normal",
    "uniform",
    "exponential",
    "max_pool",
)
_LEAST = 16  # numbers that move
_SENTINEL = 1e8  # such large numbers stand for infinity, as in masks


class WideCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the context, a cast to any floating type returns float64.

    Some code casts by design (Muon orthogonalizes in bfloat16, a norm computes in float32). On
    double inputs it would still round like eager, and could not serve as a float64 reference.
    """

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        dtype = kwargs.get("dtype")
        if (
            function is torch.ops.aten._to_copy.default
            and dtype
            and dtype.is_floating_point
        ):
            kwargs["dtype"] = torch.float64
        return function(*args, **kwargs)


class RoundOtherwise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the context, what is computed is rounded otherwise at random: Monte Carlo arithmetic.

    Of the results of an operation that rounds, one number in 22 moves by an epsilon, which has the
    variance of rounding (a twelfth of an ulp squared, in the mean over all mantissas); of a few,
    about 16 or all, since none might move by chance. Numbers that are exact where they matter (0,
    1, -1 and infinities) stay. Of a product in TF32 the operands move, which it rounds: a rounded
    weight moves all that it makes, in one direction. cuBLAS adds up parts of a short product in
    float32, which compiled code may do or not. Source: D. S. Parker, Monte Carlo Arithmetic, 1997.
    What is not covered: how sums round inside, and attention kernels in TF32.

    Attributes:
        epsilon: the largest of the products of matrices; 0 where none was seen.
    """

    supports_higher_order_operators = (
        True  # their results stay, and what they call is not seen
    )

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._generators = seed, dict[torch.device, torch.Generator]()
        self.epsilon = 0.0
        self._short: dict[str, Any] = {}

    def __enter__(self) -> Any:
        matmul = torch.backends.cuda.matmul
        for name in filter(partial(getattr, matmul), _SHORT_SUMS):
            split = getattr(matmul, f"{name}_split_k", None)
            self._short[name] = True if split is None else (True, split)
            setattr(matmul, name, False)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *why: Any) -> None:
        super().__exit__(*why)  # type: ignore[no-untyped-call]
        for name, value in self._short.items():
            setattr(torch.backends.cuda.matmul, name, value)

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        inexact = [x for x in pytree.arg_tree_leaves(*args) if _is_inexact(x)]
        if not inexact or not _rounds(function):
            return function(*args, **(kwargs or {}))
        if (name := function.overloadpacket.__name__) in _PRODUCTS:
            coarse = _of_tensor_cores(inexact[0], name)
            self.epsilon = max(self.epsilon, coarse, torch.finfo(inexact[0].dtype).eps)
            if coarse:
                args = tuple(
                    arg
                    if n == _BIASES.get(name)
                    else pytree.tree_map(partial(self._moved, epsilon=coarse), arg)
                    for n, arg in enumerate(args)
                )
        result = function(*args, **(kwargs or {}))
        if not function._schema.is_mutable:
            return pytree.tree_map(self._moved, result)
        if _is_inexact(result):
            result.copy_(self._moved(result))
        return result

    def _moved(self, x: Any, epsilon: float = 0.0) -> Any:
        if not _is_inexact(x):
            return x
        epsilon = epsilon or torch.finfo(x.dtype).eps
        if x.device not in self._generators:
            self._generators[x.device] = torch.Generator(x.device).manual_seed(
                self._seed
            )
        uniform = torch.rand(
            x.shape,
            device=x.device,
            dtype=torch.float32,
            generator=self._generators[x.device],
        )
        share = min(1.0, max(1 / 22, _LEAST / max(1, x.numel())))
        by = (uniform < share).to(x.dtype).mul_(epsilon).mul_(x)
        by = by.where(uniform < share / 2, -by)
        size = x.abs()
        return x + by.masked_fill_((size == 1) | (size > _SENTINEL), 0.0)


def _rounds(function: Any) -> bool:
    """Whether an operation computes its results, in place or not, and may round them."""
    schema = getattr(function, "_schema", None)
    if schema is None:  # of higher order
        return False
    base = function.overloadpacket.__name__.strip("_")
    if f" {base} " in _EXACT or base.startswith(_MAKES):
        return False
    if schema.is_mutable:
        return torch.Tag.pointwise in function.tags
    return not any(r.alias_info for r in schema.returns)


def _is_inexact(x: Any) -> bool:
    is_plain = isinstance(x, torch.Tensor) and x.layout is torch.strided
    return (
        is_plain
        and not (x.is_meta or x.is_nested)
        and (x.is_floating_point() or x.is_complex())
    )


def _of_tensor_cores(x: torch.Tensor, name: str) -> float:
    """Epsilon of TF32 if it makes products in float32, which torch says since 2.9; else 0."""
    with contextlib.suppress(AttributeError):
        cudnn: Any = torch.backends.cudnn
        backend = cudnn.conv if "conv" in name else torch.backends.cuda.matmul
        if x.is_cuda and x.dtype is torch.float32 and backend.fp32_precision == "tf32":
            return 2.0**-10
    return 0.0
