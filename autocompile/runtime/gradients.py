"""Keeps gradients that add up over several backward passes out of the memory of CUDA graphs.

A graph writes the gradients of each backward pass to the same memory. The first pass hands that
memory out as ``.grad``, to which the second would add what it has just overwritten: torch raises an
error, and older versions gave wrong sums (pytorch/pytorch#96693, #169545). So before a call that
will write there again, gradients that are still there are copied once, to memory of their own, in
which torch then adds up.
"""

from __future__ import annotations

import functools
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_OWN = "_autocompile_own"  # set on a gradient in memory of its own


class KeptGradients:
    """The gradients of one model that CUDA graphs run."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        # By id; frozen ones too: they may be unfrozen, and their gradients then add up.
        self._parameters: frozenset[int] = frozenset()
        # Which of them each optimizer steps, and which optimizers have stepped since the last call:
        # gradients of the others may go on adding up.
        self._optimizers: weakref.WeakKeyDictionary[
            torch.optim.Optimizer, frozenset[int]
        ] = weakref.WeakKeyDictionary()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        # Whether it was tried after a step: a program that keeps gradients (``set_to_none=False``)
        # keeps the copies, and for one that drops them no more are made.
        self._has_tried = False
        _every.add(self)
        _count_steps()

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note a step, which may be of another model."""
        if optimizer not in self._optimizers:
            self._parameters = frozenset(map(id, self._model.parameters()))
            steps = {id(p) for group in optimizer.param_groups for p in group["params"]}
            self._optimizers[optimizer] = self._parameters & steps
        if self._optimizers[optimizer]:
            self._stepped.add(optimizer)

    def _all_have_stepped(self) -> bool:
        """Whether all parameters were stepped since the last call."""
        stepped = [self._optimizers[optimizer] for optimizer in self._stepped]
        self._stepped.clear()
        return bool(stepped) and self._parameters <= frozenset().union(*stepped)

    def before_call(self) -> None:
        """Copy gradients that the next call may overwrite; call it before each."""
        if not torch.is_grad_enabled():
            return
        has_stepped = self._all_have_stepped()
        if has_stepped and self._has_tried:
            return  # without a look at each parameter, which takes longer than some steps
        self._has_tried |= has_stepped
        for p in self._model.parameters():
            if p.grad is not None and _is_a_graphs(p.grad):
                p.grad = _copy_of(p.grad)


_every: weakref.WeakSet[KeptGradients] = weakref.WeakSet()


def _copy_of(gradient: torch.Tensor) -> torch.Tensor:
    own = gradient.clone()
    setattr(own, _OWN, True)
    return own


def _is_a_graphs(gradient: torch.Tensor) -> bool:
    """Whether it may be a graph's; not a view, such as of a bucket of several ranks."""
    is_plain = gradient.layout is torch.strided and not gradient._is_view()
    return is_plain and not hasattr(gradient, _OWN)


@functools.cache
def _count_steps() -> None:
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if (
        not torch.compiler.is_dynamo_compiling()
    ):  # not is_compiling(): that is of all threads
        count_step(optimizer)


def count_step(optimizer: torch.optim.Optimizer) -> None:
    """Note that an optimizer steps; compiled steps call no hooks."""
    for kept in list(_every):
        kept.note_step(optimizer)
