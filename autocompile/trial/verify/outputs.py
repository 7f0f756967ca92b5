"""A view: what a call gave, in parts, in a form that can be copied and compared leaf by leaf."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.trial.verify.tree import TypeName, attribute_names, comparable, holds_tensor

__all__ = [
    "View",
    "copy_view",
    "dense",
    "has_nan",
    "has_tensor",
    "opaque_types",
    "without_outputs",
]

View = Mapping[str, Any]
"""By part, each a tree: ``outputs`` and ``loss``, which a call gives, ``gradients``, ``updates``,
and what it may change: ``inputs`` and ``buffers``."""

_GIVEN_BEFORE = ("inputs", "buffers")


def dense(tree: Any) -> Any:
    """The tree without its sparse and nested tensors, which have no elements to go through."""

    def kept(leaf: Any) -> Any:
        is_odd = isinstance(leaf, torch.Tensor) and (
            leaf.layout is not torch.strided or leaf.is_nested
        )
        return None if is_odd else leaf

    return pytree.tree_map(kept, tree)


def opaque_types(view: View) -> set[str]:
    """The names of the types of which only the type can be compared."""
    leaves = pytree.tree_leaves(comparable(_results(view)))
    return {str(leaf) for leaf in leaves if isinstance(leaf, TypeName)}


def copy_view(view: View) -> View:
    """A copy of the same form that later calls cannot overwrite (CUDA graphs reuse memory)."""
    twins: dict[int, tuple[Any, Any]] = {}  # the first keeps the second's key from being used again

    def copied(leaf: Any) -> Any:
        if id(leaf) in twins:
            return twins[id(leaf)][1]
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone()
        if isinstance(leaf, np.ndarray):
            return leaf.copy()
        if not holds_tensor(leaf):
            return leaf
        if isinstance(leaf, tuple):  # a class of the user's own
            return tuple.__new__(type(leaf), [every(value) for value in leaf])
        twin = copy.copy(leaf)
        twins[id(leaf)] = leaf, twin
        if isinstance(leaf, list):
            twin[:] = [every(value) for value in leaf]
        elif isinstance(leaf, MutableMapping):
            for key, value in leaf.items():
                twin[key] = every(value)
        for name in attribute_names(leaf):  # frozen ones too
            object.__setattr__(twin, name, every(getattr(leaf, name)))
        return twin

    def every(tree: Any) -> Any:
        # Only what holds a tensor is rebuilt: not every class gives the same again.
        return pytree.tree_map(copied, tree, is_leaf=lambda part: not holds_tensor(part))

    twin: View = every(dict(view))
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


def without_outputs(view: View) -> View:
    """The view without what the model returned."""
    return {name: part for name, part in view.items() if name != "outputs"}


def _results(view: View) -> dict[str, Any]:
    return {name: part for name, part in view.items() if name not in _GIVEN_BEFORE}
