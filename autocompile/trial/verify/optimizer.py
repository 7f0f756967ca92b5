"""Checks what an optimizer makes of given gradients, apart from how they were computed.

Updates of two backward passes cannot be compared: the first step of Adam is the learning rate times
the sign of each gradient, and where a gradient is rounding noise its sign is chance. So the
gradients that a side's own step has used are given to the optimizer as the target made it, from the
same state, and the parameters after it are compared, slice by slice. A step that does nothing,
skips a tensor or a row, or uses another learning rate, weight decay or step count moves them
elsewhere. Where the tolerance fails, the step is made again with its operations rounded otherwise.

What is not covered: state of an optimizer that no later step of the check uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from autocompile.runtime.sharding import split_as, whole
from autocompile.trial.values import copies
from autocompile.trial.verify.compare import (
    TRIES,
    UNKNOWN,
    explained,
    numbers,
    worst_slice,
)
from autocompile.trial.verify.slices import Apart, Moves, apart, counts, names_of

if TYPE_CHECKING:
    from autocompile.trial.model.sides import Side

# Of the length of an update. Fused Adam and AdamW differ from the loop by 4e-7 in float32 and by
# 8e-3 in bfloat16, whose states are rounded too (torch 2.13, CPU); the rest is room for others.
_TOLERANCE = 1e-4
_HALF_TOLERANCE = 5e-2
# More for few numbers: this over their count. The gradient of one may be what a sum leaves that
# cancels, and a whole compiled step may sum it once more for the update: one number of a bias was
# off by 5e-4 on an H100 (studies/verification).
_OF_FEW = 9.0
_ULPS = 2.0  # of a parameter, by which its own rounding may move it

Gradients = Mapping[str, torch.Tensor | None]


@dataclass(frozen=True)
class Made:
    """What the last step of a side was made of and what it made, by parameter, not copied.

    It stays when the side gives its memory back, and is overwritten by the side's next call.
    """

    gradients: Gradients
    parameters: Mapping[str, torch.Tensor]

    @classmethod
    def by(cls, side: Side) -> Made:
        """Of the last step of a side."""
        gradients = {
            name: None if p.grad is None else whole(p.grad)
            for name, p in side.parameters.items()
        }
        return cls(gradients, side.whole_parameters())


def step_with(side: Side, gradients: Gradients) -> None:
    """Step the optimizers of an eager side with given gradients, in place of its own."""
    own = {name: p.grad for name, p in side.parameters.items()}
    for name, parameter in side.parameters.items():
        grad = gradients[name]
        parameter.grad = None if grad is None else split_as(grad, parameter)
    try:
        for optimizer in side.optimizers:
            optimizer.step()
    finally:
        for name, parameter in side.parameters.items():
            parameter.grad = own[name]


@dataclass(frozen=True)
class _Update:
    """One parameter after a step, on both sides."""

    name: str
    right: torch.Tensor
    moved: Apart  # the step of the reference: from after to before
    off: Apart  # from the reference to the side

    @property
    def allowed(self) -> torch.Tensor:
        """The distance that rounding of the update and of the parameter explains, by slice."""
        info = torch.finfo(self.right.dtype)
        tolerance = _TOLERANCE if info.bits >= 32 else _HALF_TOLERANCE
        by_count = tolerance * (1 + _OF_FEW / counts(self.right))
        # Where eager's step overflows, its length is not known.
        moved = self.moved.error.nan_to_num(0.0, 0.0, 0.0)
        update = torch.maximum(moved, moved[:1])
        return by_count * update + _ULPS * info.eps * self.moved.scale

    def problem(self, limit: torch.Tensor) -> str | None:
        """Where the distance is larger than a limit, in words."""
        excess = self.off.error - limit
        if not bool((excess > 0).any()):
            return None
        if not bool(self.off.error[0].isfinite()):
            where = "infinite where eager does not, or the reverse"
            return f"the optimizer makes {self.name} {where}"
        worst = worst_slice(self.off.error, limit)
        place = [*names_of(self.right)][worst]
        name = self.name + (place and f" at {place}")
        off, moved = float(self.off.error[worst]), float(self.moved.error[worst])
        if not moved:
            return f"the optimizer moves {name} by {off:.2g} (RMS), and eager does not"
        how = f"{off / moved:.2g} of its length; tolerance {float(limit[worst]) / moved:.0e}"
        return f"with the same gradients, the step of {name} is off by {how}"


Tries = Callable[[Gradients], Iterable["Side"]]
"""Gives sides that have made the same step with given gradients, each rounded otherwise; fewer than
``TRIES`` says where eager cannot be."""


def step_problem(
    begin: Callable[[], Side],
    made: Made,
    tries: Tries | None = None,
    before: Mapping[str, torch.Tensor] | None = None,
) -> str | None:
    """Where a step was another one than eager's with the same gradients, or None.

    ``begin`` gives an eager side in the state before the step, whose parameters are copied unless
    ``before`` has them. ``tries`` is asked only where the tolerance fails; without it nothing else
    explains an error.
    """
    reference = begin()
    if not before or reference.parameters.keys() - before.keys():
        values = copies([*reference.whole_parameters().values()])
        before = dict(zip(reference.parameters, values, strict=True))
        del values
    step_with(reference, made.gradients)
    updates = []
    for name, right in reference.whole_parameters().items():
        moved = apart(right, before[name])
        updates.append(_Update(name, right, moved, apart(right, made.parameters[name])))
    del before
    missed = numbers([(each.off.error - each.allowed).max() for each in updates])
    far = [each for each, by in zip(updates, missed, strict=True) if by > 0]
    if not far or tries is None:
        return _first_problem(far, lambda each: each.allowed)
    # Copies of few, since the next side takes the place of this one.
    far = [replace(each, right=each.right.clone()) for each in far]
    del reference, updates, right
    moves = {each.name: Moves() for each in far}
    count, problem = 0, None
    for count, tried in enumerate(tries(made.gradients), 1):
        moved_to = tried.whole_parameters()
        for each in far:
            moves[each.name].add(apart(each.right, moved_to[each.name]).error)
        del moved_to
        if count in TRIES:
            problem = _first_problem(far, _limits(moves))
            if problem is None:
                return None
    if count < TRIES[-1]:
        return _first_problem(far, lambda each: UNKNOWN * each.allowed)
    return problem


def _first_problem(
    updates: list[_Update], limit: Callable[[_Update], torch.Tensor]
) -> str | None:
    problems = (each.problem(limit(each)) for each in updates)
    return next(filter(None, problems), None)


def _limits(moves: Mapping[str, Moves]) -> Callable[[_Update], torch.Tensor]:
    """The distance that rounding explains, from how far some tries moved each parameter."""
    return lambda each: each.allowed + explained(each.right, moves[each.name])
