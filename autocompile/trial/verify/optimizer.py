"""Checks what an optimizer makes of given gradients, apart from how they were computed.

Updates of two backward passes cannot be compared: the first step of Adam is the learning rate times
the sign of each gradient, and where a gradient is rounding noise its sign is chance. So the
gradients that a side's own step has used are given to the optimizer as the target made it, from the
same state, and the parameters after it are compared. A step that does nothing, skips a tensor, or
uses another learning rate, weight decay or step count moves them elsewhere.

What is not covered: state of an optimizer that no later step of the check uses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from autocompile.trial.model.sides import Side
from autocompile.trial.verify.compare import UNREFERENCED
from autocompile.trial.verify.outputs import copies, pieces

# Of the length of an update. Fused Adam and AdamW differ from the loop by 4e-7 in float32 and by
# 8e-3 in bfloat16, whose states are rounded too (torch 2.13, CPU); the rest is room for others.
_TOLERANCE = 1e-4
_HALF_TOLERANCE = 5e-2
_ULPS = 2.0  # of a parameter, by which its own rounding may move it
_MULTIPLE = 3.0  # of eager's own error against float64, or of what was accepted before

Gradients = Mapping[str, torch.Tensor | None]


def gradients_of(side: Side) -> Gradients:
    """Copies of what the last step of a side was made of."""
    grads = {name: p.grad for name, p in side.parameters.items() if p.grad is not None}
    made = dict(zip(grads, copies([*grads.values()]), strict=True))
    return {name: made.get(name) for name in side.parameters}


def step_with(side: Side, gradients: Gradients) -> None:
    """Step the optimizers of an eager side with given gradients, which it takes over."""
    for name, parameter in side.parameters.items():
        grad = gradients[name]
        parameter.grad = None if grad is None else grad.to(parameter)
    for optimizer in side.optimizers:
        optimizer.step()


@dataclass
class StepCheck:
    """Checks steps of one side.

    Attributes:
        given: gradients of the first steps, in order.
        accepted: relative errors of the first steps that float64 excuses, by parameter.
    """

    given: list[Gradients] = field(default_factory=list)
    accepted: dict[str, float] = field(default_factory=dict)

    def problem(
        self,
        reference: Side,
        side: Side,
        exact: Callable[[Sequence[Gradients]], Side | None] | None = None,
    ) -> str | None:
        """Where the last step of a side was another one than the reference's, or None.

        The reference, which had the state of the side before, steps along. ``exact`` makes the
        first steps in float64 with given gradients, or gives None; it is there for these only.
        """
        for p in reference.parameters.values():
            p.grad = None  # frees what is replaced
        gradients = gradients_of(side)
        if exact is not None:  # on the CPU, since they are seldom asked for
            self.given.append(
                {n: None if g is None else g.cpu() for n, g in gradients.items()}
            )
        in_float64 = functools.cache(lambda: exact(self.given) if exact else None)
        before = dict(
            zip(
                reference.parameters,
                copies([*reference.parameters.values()]),
                strict=True,
            )
        )
        step_with(reference, gradients)
        rows = [
            _apart(side.parameters[n], p, before.pop(n))
            for n, p in reference.parameters.items()
        ]
        table = (
            torch.stack([row.to(rows[0].device) for row in rows]).tolist()
            if rows
            else []
        )
        for (name, parameter), (strange, *sizes) in zip(
            reference.parameters.items(), table, strict=True
        ):
            if strange:
                return f"the optimizer makes {name} infinite where eager does not, or the reverse"
            want, got = parameter.detach(), side.parameters[name].detach()
            off, moved, size = sizes
            allowed = _allowed(parameter, moved, size)
            allowed += _MULTIPLE * self.accepted.get(name, 0.0) * moved
            if off <= allowed:
                continue
            if exact is not None:
                wide = in_float64()
                is_rounding = off <= UNREFERENCED * allowed
                if wide is not None:
                    right = wide.parameters[name].detach()
                    most = _MULTIPLE * _distance(want, right) + allowed
                    is_rounding = _distance(got, right) <= most
                if is_rounding:
                    self.accepted[name] = max(
                        self.accepted.get(name, 0.0), off / (moved or 1.0)
                    )
                    continue
            if not moved:
                return (
                    f"the optimizer moves {name} by {off:.2g} (RMS), and eager does not"
                )
            how = f"{off / moved:.2g} of its length; tolerance {allowed / moved:.0e}"
            return f"with the same gradients, the step of {name} is off by {how}"
        return None


def _allowed(parameter: torch.Tensor, moved: float, size: float) -> float:
    """The distance that rounding of the update and of the parameter explains."""
    info = torch.finfo(parameter.dtype)
    tolerance = _TOLERANCE if info.bits >= 32 else _HALF_TOLERANCE
    return tolerance * moved + _ULPS * info.eps * size


def _apart(got: torch.Tensor, want: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """How many elements are finite in one only; RMS of the error, of the update, of the values.

    On the device of ``want``, where one who waits for each would wait for long.
    """
    total = torch.zeros(4, dtype=torch.float64, device=want.device)
    every = (x.detach().to(want.device) for x in (got, want, old))
    real = (
        torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in every
    )
    for parts in zip(*map(pieces, real), strict=True):
        new, right, before = (x.double() for x in parts)
        strange = (new.isfinite() != right.isfinite()).sum().double()
        apart = ((new - right), (right - before), right)
        squares = [x.nan_to_num(0.0, 0.0, 0.0).square().sum() for x in apart]
        total += torch.stack([strange, *squares])
    total[1:] = (total[1:] / max(1, want.numel())).sqrt()
    return total


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """RMS of the difference; of a tensor without elements 0."""
    return float(_apart(one, other, other)[1])
