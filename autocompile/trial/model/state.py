"""What calls change: saved, put back, and loaded into the other sides of a phase."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.runtime.sharding import around, own_part
from autocompile.settings.config import CompileConfig
from autocompile.trial.values import copies, is_writable, pieces

# Relative to each parameter's RMS: it shows in the output, and what is computed stays of a kind.
_PERTURBATION = 0.1
_LEAST_RMS = 1e-3  # of a parameter that is zero, such as a bias
_OF_MODULES = frozenset(vars(torch.nn.Module()))  # attributes that every module has


# Of what calls change, in bytes: with less, sides keep their memory.
LARGE = 2**24
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_KNOWN = (torch.Tensor, torch.nn.Module, torch.Generator, str, bytes, int, float)


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


def _as_they_are(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach() for x in tensors]


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
        return cls.of(side, copies)

    @classmethod
    def of(cls, side: Holder, made: Callable[..., list[Any]] = _as_they_are) -> State:
        """What a side has now; without copies, if it is not used any more."""
        changing = side.changing()
        present = [own_part(p.grad) for p in side.with_gradients if p.grad is not None]
        # In one go, since whether a GPU has room for the copies depends on all of them.
        copied = iter(made([*changing.values(), *present]))
        values = {name: next(copied) for name in changing}
        gradients = [
            None if p.grad is None else next(copied) for p in side.with_gradients
        ]
        optimizers = [_form_of(optimizer) for optimizer in side.optimizers]
        return cls(values, _numbers_of(side), optimizers, gradients)

    def with_numbers_of(self, side: Holder) -> State:
        """The same tensors with the plain numbers that a side has now."""
        return replace(self, numbers=_numbers_of(side))

    def load(self, side: Holder) -> None:
        """Put it into a side, in place, so that compiled code stays valid."""
        # First, since an optimizer that has not stepped yet has no tensors to write to.
        for optimizer, form in zip(side.optimizers, self.optimizers, strict=False):
            if form["state"] and not optimizer.state:
                optimizer.load_state_dict(_with_memory(form))
        with torch.no_grad():
            self._write_values(side)
            for p, gradient in zip(side.with_gradients, self.gradients, strict=False):
                _set_gradient(p, gradient)
        side.forget()
        for name, mine in side.dictionaries().items():
            for key, kept in self.numbers.get(name, {}).items():
                now = mine.get(key)
                if isinstance(kept, _Drawn):
                    if isinstance(now, torch.Generator):
                        now.set_state(kept.state)
                # What is no number of this kind by now means something else here.
                elif type(now) is type(kept):
                    mine[key] = kept

    def _write_values(self, side: Holder) -> None:
        # Looked up again, since a call may replace a buffer's tensor.
        for name, tensor in side.changing().items():
            value = self.values.get(name)
            if value is None or tensor.shape != value.shape:
                continue
            # A write to a weight that is baked in costs a refresh of what was compiled.
            is_cheap = not side.config.bakes_weights
            if is_cheap or not torch.equal(tensor, value.to(tensor.device)):
                tensor.copy_(value)


def _numbers_of(side: Holder) -> dict[str, dict[str, Any]]:
    dictionaries = side.dictionaries().items()
    return {name: _plain_numbers(each) for name, each in dictionaries}


def _form_of(optimizer: Any) -> dict[str, Any]:
    """The state dict of an optimizer, of whose tensors one element each is stored."""

    def form(x: Any) -> Any:
        if not _is_tensor(x) or x.numel() < 2:
            return x
        part = own_part(x)
        return around(part.new_zeros(1).expand(part.shape), x)

    state: dict[str, Any] = optimizer.state_dict()
    return {**state, "state": pytree.tree_map(form, state["state"])}


def _with_memory(form: dict[str, Any]) -> dict[str, Any]:
    """The same state dict with tensors that can be written to, and that no other side has."""

    def own(x: Any) -> Any:
        return x.clone(memory_format=torch.contiguous_format) if _is_tensor(x) else x

    return {**form, "state": pytree.tree_map(own, form["state"])}


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout is torch.strided


@dataclass(frozen=True)
class _Drawn:
    """Where a generator of the model's own stands."""

    state: torch.Tensor


def _plain_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and generators in a dictionary; no booleans: flags that Dynamo may change."""
    found = {key: v for key, v in values.items() if type(v) in (int, float)}
    generators = {k: v for k, v in values.items() if isinstance(v, torch.Generator)}
    return found | {key: _Drawn(v.get_state()) for key, v in generators.items()}


def changing_attributes(
    model: torch.nn.Module, call: Callable[[], Any]
) -> list[tuple[str, str]]:
    """Attributes of modules that a call changes and no state holds: class and attribute, and type."""
    before = _things_in(model)
    call()
    after = _things_in(model)
    return [name for name in after if before.get(name) != after[name]]


def _things_in(model: torch.nn.Module) -> dict[tuple[str, str], Any]:
    """What is in attributes that are no tensors, modules or numbers: the identities of its parts."""
    found: dict[tuple[str, str], Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name in _OF_MODULES or isinstance(value, _KNOWN):
                continue
            parts = value if isinstance(value, Collection) else vars_of(value).values()
            of = f"{type(module).__name__}.{name}", type(value).__name__
            found[of] = (id(value), [id(part) for part in parts])
    return found


def vars_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, which may have none."""
    return getattr(value, "__dict__", {})


def _set_gradient(p: torch.Tensor, value: torch.Tensor | None) -> None:
    """Let a parameter have this gradient or none, in its own memory where that is still there."""
    if value is None:
        p.grad = None
        return
    if p.grad is not None and p.grad.layout is value.layout:
        with contextlib.suppress(
            RuntimeError
        ):  # a CUDA graph has taken the memory back
            own_part(p.grad).copy_(value)
            return
    p.grad = around(value.to(p.device, copy=True), p)


_Lent = list[tuple[torch.Tensor, torch.Size, tuple[int, ...]]]
"""Tensors whose memory was given back, with the shape and strides that they had."""


def lend(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> _Lent:
    """Free the memory of tensors, which are empty until :func:`take_back`, if they are large.

    Those that share memory, also with ``others``, keep it: only one of them would get new memory.
    """
    plain = [x for x in tensors if type(x) in _PLAIN and _has_storage(x)]
    if sum(x.untyped_storage().nbytes() for x in plain) < LARGE:
        return []
    every = {id(x): x for x in (*plain, *others) if _has_storage(x)}.values()
    users = Counter(x.untyped_storage().data_ptr() for x in every)
    lent: _Lent = []
    for x in plain:
        storage = x.untyped_storage()
        is_whole = storage.nbytes() == x.numel() * x.element_size()
        if is_whole and users[storage.data_ptr()] == 1:
            lent.append((x, x.shape, x.stride()))
            x.data = x.data.new_empty(0)
    return lent


def take_back(lent: _Lent) -> None:
    """Give tensors memory again, in which anything may stand."""
    for x, shape, strides in lent:
        x.data = torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
    lent.clear()


def states_of(optimizer: Any) -> dict[str, dict[str, Any]]:
    """The state of each parameter that has one, by its place in the groups."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    state = optimizer.state
    # Not by state[p] alone: it is a defaultdict, which would make one.
    return {f"parameter {n}": state[p] for n, p in enumerate(every) if p in state}


def state_of(model: torch.nn.Module) -> list[torch.Tensor]:
    """Buffers, then other tensors in attributes of its modules, also in lists and dictionaries."""
    buffers = list(model.buffers())
    # Tensors in attributes may be views of these, which are looked at already.
    registered = filter(_has_storage, map(own_part, [*model.parameters(), *buffers]))
    known = {x.untyped_storage().data_ptr() for x in registered}
    found: dict[int, torch.Tensor] = {}
    for value in _attributes_of(model):
        for x in pytree.tree_leaves(value):
            if not isinstance(x, torch.Tensor) or not _has_storage(x):
                continue
            if x.untyped_storage().data_ptr() not in known:
                found[id(x)] = x
    return [*buffers, *found.values()]


def _attributes_of(model: torch.nn.Module) -> Iterator[Any]:
    """Tensors and collections in attributes of its modules that a user has set."""
    for module in model.modules():
        for name, value in vars(module).items():
            is_own = name not in _OF_MODULES
            if is_own and isinstance(value, (torch.Tensor, list, tuple, dict)):
                yield value


def _has_storage(x: torch.Tensor) -> bool:
    """Whether a tensor has memory of one address."""
    return x.layout is torch.strided and not x.is_nested and x.numel() > 0


def generator_states() -> list[bytes]:
    """States of torch's own generators; on a GPU the seed and how many numbers were drawn."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return [state.numpy().tobytes() for state in states]


def random_states() -> list[bytes]:
    """States of all generators that a model may draw from."""
    others = [random.getstate(), np.random.get_state()]
    return [*generator_states(), *(repr(state).encode() for state in others)]


def perturb(model: torch.nn.Module, seed: int) -> None:
    """Change every floating parameter and buffer in place, equally for equal seeds.

    Buffers keep their signs and zeros, since they may be variances or masks.
    """
    torch.manual_seed(seed + 1)  # each call sets its own seed
    with torch.no_grad():
        for p in filter(torch.is_floating_point, model.parameters()):
            # By pieces, since a large weight in float64 may not fit a GPU.
            parts = pieces(p.detach())
            squares = sum(float(x.double().square().sum()) for x in parts)
            rms = (squares / max(1, p.numel())) ** 0.5
            size = _PERTURBATION * max(rms, _LEAST_RMS)
            for x in parts:
                noise = torch.randn(x.shape, device=x.device) * size
                x.add_(noise.to(p))
        for b in filter(torch.is_floating_point, model.buffers()):
            if is_writable(b):
                factor = 1 + _PERTURBATION * torch.rand(b.shape, device=b.device)
                b.mul_(factor.to(b))
