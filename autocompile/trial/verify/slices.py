"""How far two tensors are apart: as a whole, and in each slice along each axis.

A mean over a whole tensor hides one wrong row of two thousand. So each index of each axis is a
slice of its own: a sample, a position, a class, a channel, a row of an embedding.

Elements that are far larger than most, such as logits masked by -1e9, would make all others look
like rounding. They count as if they were ``_HUGE`` medians large, with their relative error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

# Elements that are looked at at once: they stay in a cache; 64 times as many on a GPU.
_PIECE = 2**18
_LEAST_SCALE = 1e-30  # of a unit that float32 holds, and its inverse
_SAMPLE = 4096  # elements that the median is taken of
_ENOUGH = 16  # tries that tell how far one of them may be off
# As far as one in a try is taken into account: a whole row that is wrong is further off.
_MOST_TAIL = 4.0
_HUGE = 10.0  # in a normal distribution, one in 10^10 elements is as large


@dataclass(frozen=True)
class Apart:
    """How far two tensors are apart, as vectors on the device of the first.

    Entry 0 is the whole tensor; the slices along its first axis follow, then those along the second
    and so on. Axes of one element have none.

    Attributes:
        error: root mean square of the difference; infinite where one alone is infinite or NaN.
        size: root mean square of the first tensor.
        squares: sums of the squares of the difference, of the first and of the second tensor.
    """

    error: torch.Tensor
    size: torch.Tensor
    squares: torch.Tensor

    @property
    def scale(self) -> torch.Tensor:
        """What an error of a slice is relative to: its own size, or that of the whole."""
        return torch.maximum(self.size, self.size[:1])


def apart(want: torch.Tensor, got: torch.Tensor) -> Apart:
    """How far ``got`` is from ``want``, which has the same shape; both may be complex.

    Nothing waits for the device: where others use a GPU too, each wait takes milliseconds.
    """
    want, got = as_real(want).squeeze(), as_real(got).squeeze().to(want.device)
    unit = _huge_from(want)
    totals = torch.zeros(
        2, 1 + sum(want.shape), dtype=torch.float64, device=want.device
    )
    squares = torch.zeros(3, dtype=torch.float64, device=want.device)
    quick = want.is_cpu and _is_short(want) and _is_short(got)
    for where in _pieces(want):
        piece = _short(want[where], got[where], unit) if quick else None
        if piece is None:
            piece = _exact(want[where], got[where], unit)
        squares += piece.squares
        _add(totals[0], piece.errors, where, want.shape)
        _add(totals[1], piece.sizes, where, want.shape)
    error, size = (totals / counts(want)).sqrt() * unit
    return Apart(error, size, squares)


class _Piece(NamedTuple):
    """A part of two tensors: squares of each element in units, and their plain sums."""

    squares: torch.Tensor  # as those of Apart
    errors: torch.Tensor
    sizes: torch.Tensor


def _exact(want: torch.Tensor, got: torch.Tensor, unit: torch.Tensor) -> _Piece:
    first, second = want.double(), got.double()
    errors = _difference(first, second)
    first, second = _finite(first), _finite(second)
    squares = torch.stack([x.square().sum() for x in (errors, first, second)])
    # In units of the largest usual element, whose squares neither over- nor underflow.
    first = first / unit
    weight = first.abs().clamp(min=1.0)
    return _Piece(squares, (errors / unit / weight).square(), (first / weight).square())


def _short(want: torch.Tensor, got: torch.Tensor, unit: torch.Tensor) -> _Piece | None:
    """The same in float32, in a quarter of the time; nothing where that cannot hold the squares.

    For a CPU, where a sum is looked at without a wait.
    """
    scale = float(1 / unit)
    if not _LEAST_SCALE < scale < 1 / _LEAST_SCALE:
        return None
    first, second = want.float(), got.float()
    # Subtracted before they are scaled: equal numbers, and only these, differ by nothing.
    errors = (first - second).mul_(scale)
    first, second = first * scale, second * scale
    each = [errors.square(), first.square(), second.square_()]
    sums = torch.stack([x.sum() for x in each])
    if not sums.isfinite().all():  # an infinity, a NaN, or a number that is huge
        return None
    weight = each[1].clamp_(min=1.0)
    sizes = first.square_().div_(weight)
    return _Piece(sums.double() * unit.square(), each[0].div_(weight), sizes)


def _is_short(x: torch.Tensor) -> bool:
    return x.dtype in (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Moves:
    """How far the slices of one tensor moved in each of some tries, as errors of :class:`Apart`."""

    errors: list[torch.Tensor] = field(default_factory=list)

    def add(self, error: torch.Tensor) -> None:
        """Take one more try into account, unless its slices are others, as of another length."""
        if not self.errors or error.shape == self.errors[0].shape:
            self.errors.append(error.nan_to_num(0.0, 0.0, 0.0))

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        """What the slices of ``x`` move by, each at least what the whole does."""
        like = counts(x)
        if not self.errors:
            return torch.zeros_like(like)
        scale = self._each().square().mean(0).sqrt().to(like.device)
        # Of a call of another size only the whole says something.
        return torch.maximum(
            scale if scale.shape == like.shape else scale[:1], scale[:1]
        )

    def worst(self, x: torch.Tensor) -> torch.Tensor:
        """How much the worst of the slices along an axis may exceed its scale.

        As far as chance alone makes it, or as far as a slice in one of the tries exceeded what the
        others moved it by, up to ``_MOST_TAIL``: errors of an activation that is 0 or not, or of a
        slice that is one large number, are small most of the time, and large some of the time.
        """
        found, scale = chances(x), self.scale(x)
        count = len(self.errors)
        if count < _ENOUGH or self.errors[0].shape != scale.shape:
            return found
        squares = self._each().square().to(scale.device)
        others = ((squares.sum(0) - squares) / (count - 1)).clamp(min=0.0).sqrt()
        others = torch.maximum(others, others[:, :1])
        least = torch.finfo(scale.dtype).tiny
        most = (squares.sqrt() / others.clamp(min=least)).amax(0)
        for begin, end in axes_of(x):
            tail = most[begin:end].max().clamp(max=_MOST_TAIL)
            found[begin:end] = torch.maximum(found[begin:end], tail)
        return found

    def _each(self) -> torch.Tensor:
        return torch.stack(self.errors)


def axes_of(x: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Where the slices along each axis begin and end."""
    begin = 1
    for n in filter(None, as_real(x).squeeze().shape):
        yield begin, begin + n
        begin += n


def names_of(x: torch.Tensor) -> Iterator[str]:
    """The slices of :func:`apart` in words: an empty text, then ``[2] of axis 0``."""
    yield ""
    axes = [(axis, n) for axis, n in enumerate(as_real(x).shape) if n != 1]
    for axis, n in axes:
        yield from (f"[{index}] of axis {axis}" for index in range(n))


def chances(x: torch.Tensor) -> torch.Tensor:
    """How much the worst of the slices along an axis exceeds a usual one by chance.

    Of ``n`` sums of ``d`` squares that are distributed alike, the largest root mean square is about
    ``1 + sqrt(2 ln(n) / d)`` times the usual one.
    """
    x = as_real(x).squeeze()
    found = [1.0]
    for n in filter(None, x.shape):
        squares = max(1, x.numel()) / n  # in a slice
        found += [1 + math.sqrt(2 * math.log(n) / squares)] * n
    return torch.tensor(found, dtype=torch.float64, device=x.device)


def counts(x: torch.Tensor) -> torch.Tensor:
    """How many elements the whole and each slice has, at least one."""
    x = as_real(x).squeeze()
    every = [float(x.numel())]
    for n in filter(None, x.shape):
        every += [x.numel() / n] * n
    return torch.tensor(every, dtype=torch.float64, device=x.device).clamp(min=1.0)


def as_real(x: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor without its graph; a complex one has a last axis of two more."""
    x = x.detach()  # a model may return a parameter
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _finite(x: torch.Tensor) -> torch.Tensor:
    return x.nan_to_num(0.0, 0.0, 0.0)


def _difference(want: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """0 where both are the same infinity or NaN; else infinite where one is not finite."""
    same = (want == got) | (want.isnan() & got.isnan())
    difference = (want - got).masked_fill(same, 0.0)
    return difference.nan_to_num(math.inf, math.inf, math.inf)


def _huge_from(x: torch.Tensor) -> torch.Tensor:
    """The size from which an element counts as huge, in float64: never 0."""
    flat = x.reshape(-1)
    sample = _finite(flat[:: max(1, flat.numel() // _SAMPLE)].double()).abs()
    if not sample.numel():
        return torch.ones((), dtype=torch.float64, device=x.device)
    # Of those that are not 0: most of an embedding's gradient is.
    median = sample.masked_fill(sample == 0, math.nan).nanmedian()
    return (_HUGE * median).nan_to_num(1.0)


def _pieces(x: torch.Tensor) -> Iterator[tuple[slice, ...]]:
    """Parts of a tensor that are small enough to be widened, as indices of its first two axes."""
    most = _PIECE * (64 if x.is_cuda else 1)
    steps = []
    inner = x.numel()  # elements below one index of the axes so far
    for n in x.shape[:2]:
        inner //= max(1, n)
        fitting = most // max(1, inner)
        steps.append((n, max(1, min(n, fitting))))
    starts = [range(0, n, step) for n, step in steps]
    for corner in itertools.product(*starts):
        yield tuple(
            slice(start, min(start + step, n))
            for start, (n, step) in zip(corner, steps, strict=True)
        )


def _add(
    total: torch.Tensor,
    values: torch.Tensor,
    where: tuple[slice, ...],
    shape: torch.Size,
) -> None:
    """Add the values of a piece to the sums of the whole and of its slices."""
    total[0] += values.sum()
    begin = 1
    for axis, n in enumerate(shape):
        others = [other for other in range(len(shape)) if other != axis]
        sums = values.sum(others) if others else values
        place = where[axis] if axis < len(where) else slice(0, n)
        total[begin + place.start : begin + place.stop] += sums
        begin += n
