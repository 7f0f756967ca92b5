"""Views: the results of a call, in parts that can be copied, held and compared leaf by leaf."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.trial.verify.tree import TypeName, attribute_names, flatten, holds_tensor

__all__ = [
    "Held",
    "View",
    "copy_view",
    "has_nan",
    "has_tensor",
    "opaque_types",
    "same_values",
    "without",
]

View = Mapping[str, Any]
"""Part name to pytree: the results ``outputs``, ``loss`` and ``gradients``, and what a
call may change: ``inputs`` and ``buffers``."""


def copy_view(view: View) -> View:
    """A copy that later calls cannot overwrite (CUDA graphs reuse memory)."""
    twins: dict[int, tuple[Any, Any]] = {}  # id to (original, kept alive so its id stays, copy)

    def copied(leaf: Any) -> Any:
        if id(leaf) in twins:
            return twins[id(leaf)][1]
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone()
        if isinstance(leaf, np.ndarray):
            return leaf.copy()
        if not holds_tensor(leaf):
            return leaf
        if isinstance(leaf, tuple):  # a user's subclass
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
        # Rebuild only what holds a tensor: some classes cannot be rebuilt from their parts.
        return pytree.tree_map(copied, tree, is_leaf=lambda part: not holds_tensor(part))

    twin: View = every(dict(view))
    return twin


def without(view: View, *parts: str) -> View:
    """The view without some of its parts."""
    return {name: part for name, part in view.items() if name not in parts}


def _results(view: View) -> list[Any]:
    return [leaf for _, leaf in flatten(without(view, "inputs", "buffers")).leaves]


def opaque_types(view: View) -> set[str]:
    """Names of the result types of which only the type can be compared."""
    return {str(leaf) for leaf in _results(view) if isinstance(leaf, TypeName)}


def has_nan(view: View) -> bool:
    """Whether a floating tensor of the results holds NaN."""
    leaves = (x for x in _results(view) if isinstance(x, torch.Tensor))
    return any(bool(x.isnan().any()) for x in leaves if x.is_floating_point())


def has_tensor(view: View) -> bool:
    """Whether the results hold a tensor."""
    return any(isinstance(leaf, torch.Tensor) for leaf in _results(view))


class Held:
    """The tensors of ``outputs`` and ``loss``, not copied, with copies of their first values.

    Shows outputs that a later call overwrites, so that a caller cannot keep two results.
    """

    def __init__(self, view: View) -> None:
        leaves = flatten({name: view[name] for name in ("outputs", "loss") if name in view}).leaves
        self._tensors = [
            (path, leaf, leaf.detach().clone())
            for path, leaf in leaves
            if isinstance(leaf, torch.Tensor)
        ]

    def overwritten(self) -> list[str]:
        """Paths of the tensors whose values have changed."""
        return [path for path, tensor, first in self._tensors if not _is_still(tensor, first)]


def _is_still(tensor: torch.Tensor, first: torch.Tensor) -> bool:
    try:
        return same_values(tensor.detach(), first)
    except RuntimeError:  # torch refuses to read what a CUDA graph has overwritten
        return False


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors of one shape are equal, NaN included."""
    return bool(((one == other) | ((one != one) & (other != other))).all())
