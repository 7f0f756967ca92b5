"""A view: what a call gave, in parts, in a form that can be copied and compared leaf by leaf."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

__all__ = [
    "View",
    "comparable",
    "copy_view",
    "dense",
    "has_nan",
    "has_tensor",
    "opaque_types",
    "plain",
]

View = Mapping[str, Any]
"""By part, each a tree: ``outputs`` and ``loss``, which a call gives, ``gradients``, ``updates``,
and what it may change: ``inputs`` and ``buffers``."""

_GIVEN_BEFORE = ("inputs", "buffers")

_DEPTH = 5  # of objects in objects: a cache holds layers that hold tensors
_NOT_ENTERED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, torch.nn.Module)


def plain(tree: Any) -> Any:
    """The same values with dataclasses as dictionaries and arrays as tensors, for pytree to see."""

    def expand(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
            return torch.from_numpy(leaf.copy())
        if _is_dataclass(leaf):
            return {f.name: plain(getattr(leaf, f.name)) for f in dataclasses.fields(leaf)}
        return leaf

    return pytree.tree_map(expand, tree)


def dense(tree: Any) -> Any:
    """The tree without its sparse and nested tensors, which have no elements to go through."""

    def kept(leaf: Any) -> Any:
        is_odd = isinstance(leaf, torch.Tensor) and (
            leaf.layout is not torch.strided or leaf.is_nested
        )
        return None if is_odd else leaf

    return pytree.tree_map(kept, tree)


def comparable(tree: Any) -> Any:
    """:func:`plain`, with what other objects hold in their attributes too.

    A model may return a cache, or a distribution. Of an object that holds no tensor and equals
    only itself there is nothing to compare but the type, whose name takes its place.
    """
    return _expanded(tree, ())


def _expanded(tree: Any, inside: tuple[int, ...]) -> Any:
    """``inside`` of which objects it is found, by identity: one may hold itself."""

    def expand(leaf: Any) -> Any:
        if id(leaf) not in inside and (attributes := _attributes(leaf)):
            deeper = (*inside, id(leaf))
            return {name: _expanded(value, deeper) for name, value in attributes.items()}
        return _name(type(leaf)) if _is_opaque(leaf) else leaf

    return pytree.tree_map(expand, plain(tree))


def opaque_types(view: View) -> set[str]:
    """The names of the types of which only the type can be compared."""
    leaves = pytree.tree_leaves(plain(_results(view)))
    return {_name(type(leaf)) for leaf in leaves if not _attributes(leaf) and _is_opaque(leaf)}


def copy_view(view: View) -> View:
    """A copy of the same form that later calls cannot overwrite (CUDA graphs reuse memory)."""

    twins: dict[int, Any] = {}

    def copied(leaf: Any) -> Any:
        if id(leaf) in twins:
            return twins[id(leaf)]
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone()
        if isinstance(leaf, np.ndarray):
            return leaf.copy()
        if _is_dataclass(leaf):
            names = [f.name for f in dataclasses.fields(leaf)]
        else:
            names = list(_attributes(leaf))
        if not names:
            return leaf
        twin = twins[id(leaf)] = copy.copy(leaf)
        for name in names:  # frozen ones too
            object.__setattr__(twin, name, pytree.tree_map(copied, getattr(leaf, name)))
        return twin

    twin: View = pytree.tree_map(copied, dict(view))
    return twin


def has_nan(view: View) -> bool:
    """Whether any of its floating tensors holds NaN."""
    every = pytree.tree_leaves(comparable(_results(view)))
    leaves = (x for x in every if isinstance(x, torch.Tensor))
    return any(bool(x.isnan().any()) for x in leaves if x.is_floating_point())


def has_tensor(view: View) -> bool:
    """Whether there is anything to compare."""
    leaves = pytree.tree_leaves(comparable(_results(view)))
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def _results(view: View) -> dict[str, Any]:
    return {name: part for name, part in view.items() if name not in _GIVEN_BEFORE}


def _is_dataclass(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


def _attributes(leaf: Any, depth: int = _DEPTH) -> dict[str, Any]:
    """The attributes of an object that holds tensors; empty for all else."""
    if depth == 0 or isinstance(leaf, (torch.Tensor, *_NOT_ENTERED)) or _is_dataclass(leaf):
        return {}
    attributes = getattr(leaf, "__dict__", None)
    if not isinstance(attributes, dict):
        return {}
    inside = pytree.tree_leaves(list(attributes.values()))
    holds = any(
        isinstance(x, torch.Tensor) or bool(x is not leaf and _attributes(x, depth - 1))
        for x in inside
    )
    return dict(attributes) if holds else {}


def _is_opaque(leaf: Any) -> bool:
    equals: Any = type(leaf).__eq__
    return equals is object.__eq__ and not isinstance(leaf, (*_NOT_ENTERED, type(None)))


def _name(kind: type) -> str:
    return f"a {kind.__module__}.{kind.__qualname__}"
