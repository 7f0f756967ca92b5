"""A mode in which eager rounds otherwise at random: the yardstick of what is rounding."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from autocompile.runtime.sharding import is_split

# The arguments of products that tensor cores round to TF32. What is added to a product, and what
# a backward pass keeps of a softmax, stays in float32.
_OPERANDS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "convolution": (0, 1),
    "convolution_backward": (0, 1, 2),
    "_scaled_dot_product_efficient_attention": (0, 1, 2),
    "_scaled_dot_product_efficient_attention_backward": (0, 1, 2, 3),
    "_cudnn_rnn": (0, 1, 4),
}
_MATRICES = ("mm", "bmm", "addmm", "baddbmm")
# How far two sums of the same products are apart, in epsilons of the lengths of the two factors, as
# a standard deviation: each is off by 0.14 where one term is added after the other, by less in blocks.
_OF_SUM = 0.2
_SHORT_SUMS = tuple(f"allow_{x}16_reduced_precision_reduction" for x in ("bf", "fp"))
# Operations that choose, move or make numbers and round none, without underscores at the ends.
_EXACT_NAMES = """ abs amax amin bernoulli cat ceil clamp clamp_max clamp_min clone constant_pad_nd
    copy copysign cummax cummin embedding fill flip floor full_like gather heaviside hardtanh index
    index_put index_select masked_fill masked_scatter masked_select max maximum median min minimum
    mode nan_to_num neg nextafter relu repeat roll round scatter select_backward select_scatter sgn
    sign slice_backward slice_scatter sort stack take threshold threshold_backward topk tril triu
    trunc unsafe_view where """
_EXACT = frozenset(_EXACT_NAMES.split())
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
_SHARE = 1 / 22  # of the results that move, by an epsilon: the variance of rounding
_LEAST = 16  # numbers that move
_SENTINEL = 1e8  # such large numbers stand for infinity, as in masks
# Random numbers that are drawn once: on a CPU, those of each operation would take longer than the
# operation. A prime, so that the rows of a tensor do not all move at the same places.
_DRAWN = 1_048_573


class RoundOtherwise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the context, what is computed is rounded otherwise at random: Monte Carlo arithmetic.

    Of the results of an operation that rounds, one number in 22 moves by an epsilon, which has the
    variance of rounding (a twelfth of an ulp squared, in the mean over all mantissas); of a few,
    about 16 or all, since none might move by chance. Numbers that are exact where they matter (0,
    1, -1 and infinities) stay. Of a product in TF32 the operands move, which it rounds: a rounded
    weight moves all that it makes, in one direction. cuBLAS adds up parts of a short product in
    float32, which compiled code may do or not. A sum of products of matrices moves by what it sums,
    and not by what is left of it: one that cancels to nearly 0, as before an activation, may
    change its sign. Source: D. S. Parker, Monte Carlo Arithmetic, 1997. What is not covered: how
    other sums round inside.
    """

    # their results stay, and what they call is not seen
    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(_DRAWN, generator=generator)
        self._drawn = {torch.device("cpu"): drawn}
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
        given = pytree.arg_tree_leaves(*args)
        if any(map(is_split, given)):
            return NotImplemented  # what it does with its parts comes here again
        if any(isinstance(x, FakeTensor) for x in given):  # a look at the split result
            return function(*args, **(kwargs or {}))
        inexact = [x for x in given if _is_inexact(x)]
        if not inexact or not _rounds(function):
            return function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        operands = _OPERANDS.get(name, ())
        coarse = _of_tensor_cores(inexact[0], name) if operands else 0.0
        if coarse:
            move = partial(self._moved, epsilon=coarse)
            args = tuple(
                pytree.tree_map(move, arg) if n in operands else arg
                for n, arg in enumerate(args)
            )
        result = function(*args, **(kwargs or {}))
        if not coarse and (lengths := _lengths(name, args)):
            share = abs((kwargs or {}).get("alpha", 1))
            result = self._summed_otherwise(result, *lengths, share)
        if not function._schema.is_mutable:
            return pytree.tree_map(self._moved, result)
        if _is_inexact(result):
            result.copy_(self._moved(result))
        return result

    def _moved(self, x: Any, epsilon: float = 0.0) -> Any:
        if not _is_inexact(x):
            return x
        epsilon = epsilon or torch.finfo(x.dtype).eps
        share = min(1.0, max(_SHARE, _LEAST / max(1, x.numel())))
        uniform = self._uniform(x)
        by = (uniform < share).to(x.dtype).mul_(epsilon).mul_(x)
        by = by.where(uniform < share / 2, -by)
        size = x.abs()
        return x + by.masked_fill_((size == 1) | (size > _SENTINEL), 0.0)

    def _summed_otherwise(
        self, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, share: float
    ) -> torch.Tensor:
        """Sums of products of two factors, given their lengths; those in float16 are exact."""
        if x.dtype not in (torch.float32, torch.float64):
            return x
        width = share * _OF_SUM * math.sqrt(12) * torch.finfo(x.dtype).eps
        by = (self._uniform(x).to(x.dtype) - 0.5).mul_(width)
        by = by.mul_(first).mul_(second)
        # A sum of zeros is exact, and an infinite length says nothing.
        return x + by.masked_fill_((x == 0) | ~by.isfinite(), 0.0)

    def _uniform(self, x: torch.Tensor) -> torch.Tensor:
        """Random numbers between 0 and 1 for each element, from another place of those drawn."""
        if x.device not in self._drawn:
            self._drawn[x.device] = self._drawn[torch.device("cpu")].to(x.device)
        drawn, begin = self._drawn[x.device], self._places.randrange(_DRAWN)
        found, missing = [drawn[begin : begin + x.numel()]], x.numel() - _DRAWN + begin
        while missing > 0:
            found.append(drawn[:missing])
            missing -= _DRAWN
        return (found[0] if len(found) == 1 else torch.cat(found)).view(x.shape)


def _rounds(function: Any) -> bool:
    """Whether an operation computes its results, in place or not, and may round them."""
    schema = getattr(function, "_schema", None)
    if schema is None:  # of higher order
        return False
    base = function.overloadpacket.__name__.strip("_")
    if base in _EXACT or base.startswith(_MAKES):
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


def _lengths(name: str, args: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The lengths of the two factors of each sum of an operation, if it is a product.

    Of a convolution, these are the patches and the filters.
    """
    length = torch.linalg.vector_norm
    if name in _MATRICES:
        first, second = args[-2:]
        return length(first, dim=-1, keepdim=True), length(second, dim=-2, keepdim=True)
    if name != "convolution" or args[6]:  # transposed
        return None
    x, filters, _, *how, groups = args
    places = [1] * (x.dim() - 2)
    ones = filters.new_ones((groups, *filters.shape[1:]))
    convolve: Any = torch.convolution
    patches = convolve(x.square(), ones, None, *how, groups).clamp_(min=0)
    of_each = len(filters) // groups
    of_filters = length(filters.flatten(1), dim=1).view(1, -1, *places)
    return patches.sqrt_().repeat_interleave(of_each, dim=1), of_filters


def _of_tensor_cores(x: torch.Tensor, name: str) -> float:
    """Epsilon of TF32 if products in float32 are made in it; else 0."""
    if not x.is_cuda or x.dtype is not torch.float32:
        return 0.0
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    try:
        of_cudnn = cudnn.rnn if "rnn" in name else cudnn.conv
        backend = of_cudnn if "conv" in name or "rnn" in name else matmul
        is_short = backend.fp32_precision == "tf32"
    except AttributeError:  # before torch 2.9
        is_short = (cudnn if "conv" in name or "rnn" in name else matmul).allow_tf32
    return 2.0**-10 if is_short else 0.0
