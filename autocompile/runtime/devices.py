"""The device that a function works on, told by the tensors that it gets and refers to."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

_WITHOUT_PARTS = (type, ModuleType, str, bytes, int, float, complex)
_DEPTH = 4  # of objects inside each other, such as a model in the closure of a step


def device_of(*things: Any) -> torch.device | None:
    """The device of the first tensor that is not on the CPU, else the CPU; None without a tensor.

    Looked at are tensors in containers, the weights of modules and optimizers, what functions find
    in their closures, defaults and globals, and attributes of other objects.
    """
    found: torch.device | None = None
    for tensor in _tensors(things, _DEPTH, set()):
        if tensor.device.type != "cpu":
            return tensor.device
        found = tensor.device
    return found


def _tensors(things: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(things):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth and id(leaf) not in seen:
            seen.add(id(leaf))
            yield from _tensors(_inside(leaf), depth - 1, seen)


def _inside(thing: Any) -> list[Any]:
    """What an object refers to, as far as a call of it is likely to use it."""
    if isinstance(thing, torch.nn.Module):
        return [*thing.parameters(), *thing.buffers()]
    if isinstance(thing, torch.optim.Optimizer):
        return [p for group in thing.param_groups for p in group["params"]]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, functools.partial):
        return [thing.args, thing.keywords, thing.func]
    if isinstance(thing, FunctionType):
        return _inside_function(thing)
    # Attributes of a class or module are everybody's, and tell nothing of this call.
    if isinstance(thing, _WITHOUT_PARTS):
        return []
    return [*getattr(thing, "__dict__", {}).values()]


def _inside_function(function: FunctionType) -> list[Any]:
    """What is in its closure, defaults, and globals that its code names."""
    found: list[Any] = []
    for cell in function.__closure__ or ():
        # A variable that is not assigned yet raises.
        with contextlib.suppress(ValueError):
            found.append(cell.cell_contents)
    found.append(function.__defaults__)
    known = function.__globals__
    found += [known[name] for name in function.__code__.co_names if name in known]
    return found
