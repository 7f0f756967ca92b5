"""What calls change: saved, put back, and loaded into the other sides of a phase."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.settings.config import CompileConfig
from autocompile.trial.values import copies, is_writable, pieces

# Relative to each parameter's RMS: it shows in the output, and what is computed stays of a kind.
_PERTURBATION = 0.1
_OF_MODULES = frozenset(vars(torch.nn.Module()))  # attributes that every module has


class Holder(Protocol):
    """What has a state: a side.

    Attributes:
        optimizers: whose states are a part of it.
        with_gradients: parameters whose gradients are a part of it.
    """

    config: CompileConfig
    optimizers: list[Any]
    with_gradients: list[torch.Tensor]

    def changing(self) -> dict[str, torch.Tensor]:
        """The tensors that calls change, by names that are the same on all sides."""

    def dictionaries(self) -> dict[str, dict[str, Any]]:
        """Dictionaries that may hold plain numbers, such as counts of steps, by such names."""

    def forget(self) -> None:
        """Drop what calls accumulate and nothing compares."""


@dataclass(frozen=True)
class State:
    """What calls of a side change, by names that are the same on all sides of a phase.

    Attributes:
        values: of tensors, such as parameters, buffers and an optimizer's moments.
        numbers: plain numbers in attributes and dictionaries, such as counts of steps.
        optimizers: a state of each that has its form, for one that has not stepped yet.
        gradients: of ``Holder.with_gradients``, in their order; None where there is none.
    """

    values: Mapping[str, torch.Tensor] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    optimizers: Sequence[Any] = ()
    gradients: Sequence[torch.Tensor | None] = ()

    @classmethod
    def saved(cls, side: Holder) -> State:
        """Copies of what a side has now."""
        numbers = {
            name: {k: v for k, v in each.items() if type(v) in (int, float)}
            for name, each in side.dictionaries().items()
        }
        changing, trained = side.changing(), side.with_gradients
        grads = [p.grad for p in trained if p.grad is not None]
        copied = copies([*changing.values(), *grads])
        values = dict(zip(changing, copied, strict=False))
        made = iter(copied[len(changing) :])
        gradients = [None if p.grad is None else next(made) for p in trained]
        optimizers = [optimizer.state_dict() for optimizer in side.optimizers]
        return cls(values, numbers, optimizers, gradients)

    def load(self, side: Holder) -> None:
        """Put it into a side, in place, so that compiled code stays valid."""
        for optimizer, state in zip(side.optimizers, self.optimizers, strict=False):
            if state["state"] and not optimizer.state:  # it has not stepped yet
                optimizer.load_state_dict(state)
        bakes = side.config.bakes_weights  # then a write costs a refresh
        with torch.no_grad():
            # Looked up again, since a call may replace a buffer's tensor.
            for name, tensor in side.changing().items():
                value = self.values.get(name)
                if value is None or tensor.shape != value.shape:
                    continue
                if not (bakes and torch.equal(tensor, value.to(tensor.device))):
                    tensor.copy_(value)
            for p, gradient in zip(side.with_gradients, self.gradients, strict=False):
                _set_gradient(p, gradient)
        side.forget()
        # Not booleans: Dynamo may have changed flags of the compiled side.
        for name, mine in side.dictionaries().items():
            kept = self.numbers.get(name, {})
            mine.update({k: v for k, v in kept.items() if type(mine.get(k)) is type(v)})


def _set_gradient(p: torch.Tensor, value: torch.Tensor | None) -> None:
    """Let a parameter have this gradient or none, in its own memory where that is still there."""
    if value is None or p.grad is None or p.grad.layout is not value.layout:
        p.grad = None if value is None else value.to(p.device, copy=True)
        return
    try:
        p.grad.copy_(value)
    except RuntimeError:  # a CUDA graph has taken the memory back
        p.grad = value.to(p.device, copy=True)


def states_of(optimizer: Any) -> dict[str, dict[str, Any]]:
    """The state of each parameter that has one, by its place in the groups."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        f"parameter {n}": optimizer.state[p]
        for n, p in enumerate(every)
        if p in optimizer.state
    }


def state_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Buffers, then other tensors in attributes of its modules, also in lists and dictionaries."""
    buffers = list(model.buffers())
    known = {
        x.untyped_storage().data_ptr()
        for x in (*model.parameters(), *buffers)
        if _has_one(x)
    }
    values = (
        v for m in model.modules() for n, v in vars(m).items() if n not in _OF_MODULES
    )
    leaves = pytree.tree_leaves(
        [v for v in values if isinstance(v, (torch.Tensor, list, tuple, dict))]
    )
    plain = {id(x): x for x in leaves if isinstance(x, torch.Tensor) and _has_one(x)}
    return buffers + [
        x for x in plain.values() if x.untyped_storage().data_ptr() not in known
    ]


def _has_one(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and not x.is_nested and x.numel() > 0


def random_states() -> list[bytes]:
    """States of all generators that a model may draw from."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    others = [random.getstate(), np.random.get_state()]
    return [s.numpy().tobytes() for s in states] + [
        repr(state).encode() for state in others
    ]


def perturb(model: torch.nn.Module, seed: int) -> None:
    """Change every floating parameter and buffer in place, equally for equal seeds.

    Buffers keep their signs and zeros, since they may be variances or masks.
    """
    torch.manual_seed(seed + 1)  # each call sets its own seed
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                parts = pieces(p.detach())
                squares = sum(float(x.double().square().sum()) for x in parts)
                size = max((squares / max(1, p.numel())) ** 0.5, 1e-3) * _PERTURBATION
                for x in parts:
                    x.add_((torch.randn(x.shape, device=x.device) * size).to(p))
        for b in model.buffers():
            if b.is_floating_point() and is_writable(b):
                b.mul_((1 + _PERTURBATION * torch.rand(b.shape, device=b.device)).to(b))
