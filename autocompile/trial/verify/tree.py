"""Converts the result of a call to a tree of plain containers.

:func:`comparable` turns every container into a dict, list, tuple or :class:`Node`. Other classes
are not passed to ``torch.utils._pytree``: it cannot name the parts of every registered class, and
rebuilding one runs its own code.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

__all__ = [
    "TypeName",
    "attribute_names",
    "blank",
    "comparable",
    "holds_tensor",
    "paths",
    "result_tensors",
]

_DEPTH = 5  # of nested objects, such as a cache of layers of tensors
_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, torch.nn.Module)
_VALUES = (
    *(torch.Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, type(None)),
    *(enum.Enum, torch.dtype, torch.layout, torch.memory_format),
)
_NAMED = (FunctionType, MethodType, torch.nn.Module)  # distinct objects on each side


class TypeName(str):
    """Replaces an object of which only the type can be compared."""


class Kind(NamedTuple):
    """Type name and keys of a node, which two equal nodes share."""

    name: str
    keys: tuple[Any, ...]

    def __repr__(self) -> str:
        return self.name


class Node:
    """A container other than a dict, list or tuple."""

    def __init__(self, kind: Kind, values: list[Any]) -> None:
        self.kind, self.values = kind, values


pytree.register_pytree_node(
    Node,
    lambda node: (node.values, node.kind),
    lambda values, kind: Node(kind, list(values)),
    flatten_with_keys_fn=lambda node: (
        list(zip(node.kind.keys, node.values, strict=True)),
        node.kind,
    ),
)


def comparable(tree: Any) -> Any:
    """The tree in plain containers, with arrays as tensors.

    An object that holds tensors, such as a cache or a distribution, becomes a container of its
    attributes. An object without tensors that equals only itself becomes a :class:`TypeName`, or a
    plain string inside another object.
    """
    return _expanded(tree, ())


def paths(tree: Any) -> list[tuple[str, Any]]:
    """(path as a string, leaf) of each leaf of a :func:`comparable` tree."""
    return [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(tree)[0]]


def blank(tree: Any, places: set[str]) -> Any:
    """A comparable tree in which leaves at ``places`` are replaced: tensors by zeros, else None."""

    def kept(path: Any, leaf: Any) -> Any:
        if pytree.keystr(path) not in places:
            return leaf
        return torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else None

    return pytree.tree_map_with_path(kept, tree)


def result_tensors(tree: Any, depth: int = _DEPTH) -> list[torch.Tensor]:
    """The tensors in a result, also inside objects; simple enough for Dynamo to trace."""
    found: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif isinstance(leaf, (*_VALUES, *_CODE)) or depth == 0:
            continue
        elif isinstance(leaf, (Mapping, list, tuple)):
            parts = leaf.values() if isinstance(leaf, Mapping) else leaf
            found += result_tensors(list(parts), depth - 1)
        else:
            values = [getattr(leaf, name) for name in attribute_names(leaf)]
            found += result_tensors(values, depth - 1)
    return found


def holds_tensor(thing: Any, depth: int = _DEPTH) -> bool:
    """Whether it is or contains a tensor or array."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return True
    node = _node_of(thing, depth)
    if node is None:
        return False
    deeper = depth if not pytree.tree_is_leaf(thing) else depth - 1
    return any(holds_tensor(x, deeper) for x in node.values)


def attribute_names(thing: Any) -> list[str]:
    """The fields of a dataclass; the attributes and slots of any other object."""
    if dataclasses.is_dataclass(thing):
        return [f.name for f in dataclasses.fields(thing) if hasattr(thing, f.name)]
    names = set(getattr(thing, "__dict__", ()))
    for cls in type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names.update([slots] if isinstance(slots, str) else slots)
    return sorted(name for name in names - {"__dict__", "__weakref__"} if hasattr(thing, name))


def _expanded(thing: Any, inside: tuple[int, ...]) -> Any:
    """``comparable`` of a part; ``inside`` has the ids of its parents, against reference cycles."""
    thing = _as_tensor(thing)
    if isinstance(thing, torch.Tensor):
        return _dense_parts(thing)
    if type(thing) is dict:
        return {key: _expanded(value, inside) for key, value in thing.items()}
    if type(thing) is list:
        return [_expanded(value, inside) for value in thing]
    if type(thing) in (tuple, torch.Size):
        return tuple(_expanded(value, inside) for value in thing)
    if isinstance(thing, Node):
        return Node(thing.kind, [_expanded(value, inside) for value in thing.values])
    node = None if id(thing) in inside else _node_of(thing, _DEPTH)
    if node is not None:
        deeper = (*inside, id(thing)) if _is_object(thing) else inside
        return Node(node.kind, [_expanded(value, deeper) for value in node.values])
    if _is_opaque(thing):
        name = f"a {_name(thing if isinstance(thing, FunctionType) else type(thing))}"
        return name if inside else TypeName(name)
    return thing


def _node_of(thing: Any, depth: int) -> Node | None:
    """The direct parts of a container, not expanded; None for other objects."""
    if isinstance(thing, (*_VALUES, *_CODE)):
        return None
    if not pytree.tree_is_leaf(thing):
        return _node(thing, _registered_parts(thing))
    if depth == 0:
        return None
    is_dataclass = dataclasses.is_dataclass(thing)
    if isinstance(thing, Mapping) and not is_dataclass:
        return _node(thing, [(pytree.MappingKey(k), v) for k, v in thing.items()])
    if isinstance(thing, (list, tuple)) and not is_dataclass:
        return _node(thing, [(pytree.SequenceKey(i), v) for i, v in enumerate(thing)])
    names = attribute_names(thing)
    node = _node(thing, [(pytree.GetAttrKey(name), getattr(thing, name)) for name in names])
    return node if is_dataclass or holds_tensor(node.values, depth - 1) else None


def _node(kind: Any, parts: list[tuple[Any, Any]]) -> Node:
    """A node of parts with their keys, named by a text or the type of a thing."""
    name = kind if isinstance(kind, str) else _name(type(kind))
    return Node(Kind(name, tuple(key for key, _ in parts)), [value for _, value in parts])


def _registered_parts(thing: Any) -> list[tuple[Any, Any]]:
    """Parts of a container registered with pytree, by its own keys or else by position."""

    def is_part(other: Any) -> bool:
        return other is not thing

    values, spec = pytree.tree_flatten(thing, is_leaf=is_part)
    parts: list[tuple[Any, Any]] = [(pytree.SequenceKey(i), v) for i, v in enumerate(values)]
    try:
        found, _ = pytree.tree_flatten_with_path(thing, is_leaf=is_part)
        if len(found) == len(values):
            parts = [(path[0], part) for path, part in found]
    except ValueError:  # registered without keys
        if isinstance(thing, Mapping) and [*map(id, thing.values())] == [*map(id, values)]:
            parts = [(pytree.MappingKey(key), value) for key, value in thing.items()]
    if spec.context is not None and not isinstance(spec.context, type):
        # The context may hold anything, including tensors.
        parts.append((pytree.GetAttrKey("context"), _expanded(spec.context, (id(thing),))))
    return parts


def _is_object(thing: Any) -> bool:
    """Whether it holds values only in its attributes."""
    is_container = isinstance(thing, (Mapping, list, tuple)) or dataclasses.is_dataclass(thing)
    return pytree.tree_is_leaf(thing) and not is_container


def _as_tensor(thing: Any) -> Any:
    """NumPy arrays and numbers as tensors, or as lists if they are not numeric."""
    if isinstance(thing, (np.ndarray, np.generic)) and not isinstance(thing, (float, complex)):
        array = np.asarray(thing)
        return torch.from_numpy(array.copy()) if array.dtype.kind in "biufc" else array.tolist()
    return thing


def _dense_parts(tensor: torch.Tensor) -> Any:
    """The tensor itself, or the parts of a sparse or nested one."""
    if tensor.is_nested:
        parts = enumerate(tensor.unbind())
        return _node("a nested tensor", [(pytree.SequenceKey(i), part) for i, part in parts])
    if tensor.layout is torch.strided:
        return tensor
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
        return tensor.to_dense()
    found = tensor.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    named = {"shape": [*found.shape], "indices": found.indices(), "values": found.values()}
    return _node("a sparse tensor", [(pytree.GetAttrKey(k), v) for k, v in named.items()])


def _is_opaque(thing: Any) -> bool:
    """Whether it cannot be compared with its counterpart of another run."""
    if isinstance(thing, _NAMED):
        return True
    if isinstance(thing, (*_VALUES, *_CODE)):
        return False
    equals: Any = type(thing).__eq__
    if equals is object.__eq__:
        return True
    try:
        return not isinstance(bool(thing == thing), bool)
    except Exception:  # comparing pandas tables returns a table
        return True


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
