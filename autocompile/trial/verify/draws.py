"""How a side is judged that draws other random numbers than eager: by what no draw decides.

Two questions are asked of the one program that was compiled:

- :func:`distribution_problem`: how large results are, how much of them eager's mean has, and how
  far draws move them, slice by slice, must be as in eager over as many seeds, within what these
  scatter. A wrong rate, numbers that are not scaled or stand elsewhere show, and those that no seed
  decides;
- :func:`slope_problem`: for one seed the loss is a function of the parameters, whatever was drawn,
  and gradients are its slope. They are not where the backward pass has another mask than the
  forward pass. The slope is taken along the difference of the gradients of two seeds, which draws
  alone make.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from autocompile.runtime.ranks import here
from autocompile.runtime.sharding import split_as, whole
from autocompile.trial.values import copies, flatten
from autocompile.trial.verify.compare import (
    TRIES,
    UNKNOWN,
    Movement,
    is_real,
    numbers,
    of_gradient,
    relative_differences,
    tolerance_of,
)
from autocompile.trial.verify.outputs import CHANGES, View, copy_view, without
from autocompile.trial.verify.slices import apart, as_real, axes_of, names_of

if TYPE_CHECKING:
    from autocompile.trial.model.sides import Side
    from autocompile.trial.verify.reference import Reference

SEEDS = 8  # of each side
_FEWEST = 4  # where they take long
_MOST_S = 5.0  # for more, of each side
_OF_MEAN = 4  # other seeds, of which the mean is taken that results are compared with
# Standard errors that two means may be apart: with 14 degrees of freedom one pair in 700,000 is.
_MULTIPLE = 8.0
_SHIFT = 0.02  # of a mean: what rounding may shift it by, as in bfloat16
_OF_GRADIENT = 0.01  # of a gradient's size: the same
# Shares of the loss that a step along the slope is to change: of large ones rounding shows less.
_STEPS = (0.01, 0.1)
_OFF = 0.02  # of a slope that is right
_STEADY = 0.05  # of eager's own: where it is further off, a slope tells nothing
# What is seen of a call: how far it is from what it is compared with, its size, and its part along.
_FAR, _SIZE, _ALONG = range(3)


# Over seeds ---------------------------------------------------------------------------------------


@dataclass
class Spread:
    """Mean and spread of what was seen of the slices of each leaf, in some calls.

    Attributes:
        count: calls.
        means: by path, a row for each of ``_FAR``, ``_SIZE`` and ``_ALONG``.
        squares: sums of squared deviations from these.
        sizes: by path, of what calls are compared with.
    """

    count: int = 0
    means: dict[str, torch.Tensor] = field(default_factory=dict)
    squares: dict[str, torch.Tensor] = field(default_factory=dict)
    sizes: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, fixed: Mapping[str, torch.Tensor], view: View) -> None:
        """Take one more call into account, by its leaves that are in ``fixed``."""
        self.count += 1
        for path, got in _real_leaves(view):
            want = fixed.get(path)
            if want is None or as_real(want).shape != as_real(got).shape:
                continue
            want = want.to(got.device)  # the host keeps large ones
            far, size = apart(got, want), self.sizes.get(path)
            if size is None:
                size = self.sizes[path] = apart(want, want).size
            unit = size.clamp(min=torch.finfo(size.dtype).tiny)
            along = (far.size.square() + size.square() - far.error.square()) / 2 / unit
            seen = torch.stack([far.error, far.size, along]).nan_to_num(0.0, 0.0, 0.0)
            mean = self.means.setdefault(path, torch.zeros_like(seen))
            change = seen - mean
            mean += change / self.count
            squares = self.squares.setdefault(path, torch.zeros_like(seen))
            squares += change * (seen - mean)

    def variance(self, path: str) -> torch.Tensor:
        """The variance of the means."""
        return self.squares[path] / max(1, self.count - 1) / self.count


@dataclass
class Draws:
    """What a side has given over some seeds, with the same inputs and state.

    Attributes:
        first: for the first seed, without what is as large as the model.
        spread: of the seeds after it.
        moved: paths of what is another for one of these.
        differ: how many of these are not as the first.
        refused: how many of these the user's ``check`` refuses, beside eager's first.
        why: in its words.
    """

    first: View
    spread: Spread = field(default_factory=Spread)
    moved: set[str] = field(default_factory=set)
    differ: int = 0
    refused: int = 0
    why: str = ""


@dataclass
class EagersDraws:
    """What eager gives over some seeds, which all sides of a process are compared with.

    Attributes:
        fixed: by path what calls are compared with: a mean over other seeds; of gradients, which
            are as large as the model, those of one call.
        draws: of eager.
        step: share of the loss that a step along the slope is to change, and eager's slope there;
            None where it is not steady.
    """

    fixed: Mapping[str, torch.Tensor]
    draws: Draws
    step: tuple[float, float] | None


def eagers_draws(reference: Reference) -> EagersDraws:
    """Run eager with several seeds."""
    fixed = _mean(reference)
    view = _view(reference, reference.eager, 0)
    large = dict(_real_leaves({name: x for name, x in view.items() if name in CHANGES}))
    # On the host, if they are large on a GPU.
    fixed |= zip(large, copies([*large.values()]), strict=True)
    del view, large
    draws = draws_of(reference, reference.eager, fixed)
    for step in _STEPS:
        found = slope(reference, reference.eager, step)
        if found is not None and abs(found - 1) <= _STEADY:
            return EagersDraws(fixed, draws, (step, found))
    return EagersDraws(fixed, draws, None)


def draws_of(
    reference: Reference,
    side: Side,
    fixed: Mapping[str, torch.Tensor],
    eager: Draws | None = None,
) -> Draws:
    """Run a side with as many seeds as eager, or eager with as many as there is time for."""
    found = Draws(without(reference.from_kept(side), *CHANGES))
    want = (eager or found).first
    began, count = time.monotonic(), eager.spread.count if eager else SEEDS
    for number in range(1, count + 1):
        is_slow = here().agree(time.monotonic() - began > _MOST_S, any)
        if eager is None and number > _FEWEST and is_slow:
            break
        view = _view(reference, side, number)
        found.spread.add(fixed, view)
        apart_ = relative_differences(found.first, without(view, *CHANGES))
        found.moved |= {path for path, by in apart_.items() if by}
        found.differ += any(apart_.values())
        if why := reference.refusal(want, view):
            found.refused, found.why = found.refused + 1, why
    return found


def _mean(reference: Reference) -> dict[str, torch.Tensor]:
    """The mean of what eager gives for some other seeds, without what is as large as the model."""
    total: dict[str, torch.Tensor] = {}
    for number in range(SEEDS + 1, SEEDS + 1 + _OF_MEAN):
        view = without(_view(reference, reference.eager, number), *CHANGES)
        for path, x in _real_leaves(copy_view(view)):
            part = x / _OF_MEAN
            total[path] = total[path] + part if path in total else part
    return total


def _view(reference: Reference, side: Side, number: int) -> View:
    """What a side gives for a seed, with the inputs and the state of the first call."""
    side.begin_anew(reference.eager)
    return side.view(reference.call(side, number * len(reference.batches)))


def _real_leaves(view: View) -> Iterator[tuple[str, torch.Tensor]]:
    return ((path, x) for path, x in flatten(view).leaves if is_real(x))


def distribution_problem(
    reference: Reference, eager: EagersDraws, own: Draws, notes: list[str]
) -> str | None:
    """Where what a side draws is distributed otherwise than what eager draws, or None."""
    theirs = eager.draws
    # Few draws, as of stochastic depth, may be the same for some seeds.
    if not own.differ and theirs.differ > own.spread.count / 2:
        return "its results are the same whatever the seed, where eager's differ"
    if own.refused == own.spread.count and not theirs.refused:
        return own.why
    free = tuple(f"['{name}']" for name in reference.free)
    # What no draw moves has to be the same, which is another comparison.
    drawn = {
        path: want
        for path, want in eager.fixed.items()
        if path in own.spread.means
        and (path in theirs.moved or of_gradient(path))
        and not path.startswith(free)
    }
    moved, problem = reference.rounding(0, notes), None
    for tries in (0, *TRIES):  # what rounding moves takes many calls
        movement = moved(tries) if tries else Movement()
        problems = (
            _misplaced(path, want, reference, eager, own, movement)
            for path, want in drawn.items()
        )
        problem = next(filter(None, problems), None)
        if not problem or movement is None:
            return problem
    return problem


def _misplaced(
    path: str,
    want: torch.Tensor,
    reference: Reference,
    eagers: EagersDraws,
    draws: Draws,
    movement: Movement | None,
) -> str | None:
    """Which mean of a leaf is further from eager's than chance and rounding explain."""
    eager, own = eagers.draws.spread, draws.spread
    means = eager.means[path]
    off = own.means[path] - means
    error = (eager.variance(path) + own.variance(path)).sqrt()
    # The standard error of one of many slices is small by chance: at least a usual one.
    for begin, end in axes_of(want):
        usual = error[:, begin:end].median(dim=1, keepdim=True).values
        error[:, begin:end] = torch.maximum(error[:, begin:end], usual)
    chance = _MULTIPLE * max(1.0, SEEDS / own.count) * error
    limit = (
        chance
        + _SHIFT * means.abs()
        + _by_rounding(path, want, means, reference, movement)
    )
    beyond = (off.abs() / limit).nan_to_num(0.0)
    if float(beyond.max()) <= 1:
        return None
    kind, at = divmod(int(beyond.argmax()), beyond.shape[1])
    unit = float(means[kind, at].abs()) or 1.0
    by, explained = float(off[kind, at]) / unit, float(limit[kind, at]) / unit
    name = [*names_of(want)][at]
    place = f"{path} at {name}" if name else path
    what = _in_words(kind, 1 + by)
    return f"{place} {what} (over {own.count} seeds; chance explains {explained:.2g})"


def _in_words(kind: int, times: float) -> str:
    """What a mean that is so many times eager's tells."""
    return {
        _FAR: f"is moved by draws {times:.2g} times as far as eager's",
        _SIZE: f"is {times:.2g} times as large as eager's",
        _ALONG: f"has {times:.2g} times the part of eager's mean that eager's has",
    }[kind]


def _by_rounding(
    path: str,
    want: torch.Tensor,
    means: torch.Tensor,
    reference: Reference,
    movement: Movement | None,
) -> torch.Tensor:
    """How far rounding may shift each mean of a leaf, whose errors are independent of draws.

    Such an error adds to a distance, or a size, as the root of the sum of squares.
    """
    usual = tolerance_of(path, want, reference.tolerance)
    usual = _OF_GRADIENT if of_gradient(path) else usual
    size = means[_SIZE]
    if movement is None:  # it is not known
        return UNKNOWN * usual * torch.maximum(size, size[:1])
    error = movement.explained(path, want, of_gradient(path)).to(means)
    added = torch.stack([torch.hypot(x, error) - x for x in (means[_FAR], size)])
    return usual * size + torch.cat([added, error[None]])


# The slope of the loss ----------------------------------------------------------------------------


def slope_problem(reference: Reference, eager: EagersDraws, side: Side) -> str | None:
    """How the gradients of a side are not the slope of its own loss, or None if they may be."""
    if eager.step is None:
        return None
    step, eagers = eager.step
    found = slope(reference, side, step)
    if found is None or abs(found - 1) <= _OFF + 3 * abs(eagers - 1):
        return None
    return (
        "its gradients are not the slope of its loss for the same seed, as where the backward pass "
        f"draws other numbers: along them the loss changes {found:.2g} times as much"
    )


def slope(reference: Reference, side: Side, step: float) -> float | None:
    """The change of the loss along what draws change of the gradients, over what these say.

    None where a call has no one loss, or draws change no gradient.
    """
    calls = 0, len(reference.batches)  # two seeds, the same inputs
    direction, loss = _between(reference, side, calls)
    square = sum(numbers([x.double().square().sum() for x in direction.values()]))
    if not loss or not square > 0:
        return None
    by, change = step * abs(loss) / square, 0.0
    for call, sign in ((calls[0], 1), (calls[1], -1)):
        for way in (1, -1):
            side.begin_anew(reference.eager)
            with torch.no_grad():
                for name, x in direction.items():
                    p = side.parameters[name]
                    p.add_(split_as(x, p), alpha=way * by)
            change += sign * way * (_loss_of(reference.call(side, call)) or 0.0)
    side.begin_anew(reference.eager)
    return change / (2 * by * square)


def _between(
    reference: Reference, side: Side, calls: tuple[int, int]
) -> tuple[dict[str, torch.Tensor], float | None]:
    """The gradients of one call less those of another, and the loss of the last."""
    found: dict[str, torch.Tensor] = {}
    for call in calls:
        side.begin_anew(reference.eager)
        loss = _loss_of(reference.call(side, call))
        if loss is None or not side.parameters:
            return {}, None
        grads = {
            name: whole(p.grad)
            for name, p in side.parameters.items()
            if p.grad is not None
        }
        if not found:
            found = dict(zip(grads, copies([*grads.values()]), strict=True))
            continue
        for name, x in found.items():
            if name in grads:
                x.sub_(grads[name].to(x.device))
    return found, loss


def _loss_of(output: Any) -> float | None:
    """The only real number of a result, if it has just one: of several ranks their mean.

    Averaged gradients are the slope of that.
    """
    return here().agree(_own_loss_of(output), _mean_of)


def _mean_of(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return fmean(known) if len(known) == len(losses) else None


def _own_loss_of(output: Any) -> float | None:
    real = [x for _, x in flatten(output).leaves if is_real(x) or isinstance(x, float)]
    if len(real) != 1 or isinstance(real[0], float):
        return real[0] if len(real) == 1 else None
    (x,) = real
    return float(whole(x)) if x.numel() == 1 and not x.is_complex() else None
