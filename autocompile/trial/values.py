"""Trees of values, as models take and return them: taken apart, copied, and rebuilt otherwise.

One walk goes in both directions: into containers and into the attributes of objects that hold
tensors, such as caches, dataclasses and distributions. What is compared of an output is copied,
moved and changed of an input.

Classes that are not plain containers are not passed to ``torch.utils._pytree``: it cannot name the
parts of every registered class, and rebuilding one runs its own code.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from autocompile.runtime.ranks import here

_PIECE = 2**20  # elements
_ROOM = 6  # copies stay on a GPU that has room for so many
USUAL_COPIES = 2**30
"""Bytes of copies that count as a part of what a process needs of a GPU, where they have room."""
_DEPTH = 5  # of nested objects, such as a cache of layers of tensors
_CODE = (
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    torch.nn.Module,
)
_VALUES = (
    *(
        torch.Tensor,
        np.ndarray,
        np.generic,
        str,
        bytes,
        int,
        float,
        complex,
        type(None),
    ),
    *(enum.Enum, torch.dtype, torch.layout, torch.memory_format),
)
_CONTEXT = pytree.GetAttrKey("context")  # may hold anything, including tensors
_NAMED = (FunctionType, MethodType, torch.nn.Module)  # distinct objects on each side

Parts = list[tuple[Any, Any]]
"""Key, as of pytree, and value of each part of a container."""


class TypeName(str):
    """Replaces an object of which only the type can be compared."""


class Flat(NamedTuple):
    """The leaves of a tree by path, in order, and what is around them."""

    structure: str
    leaves: list[tuple[str, Any]]


def flatten(tree: Any) -> Flat:
    """Structure and leaves, with arrays as tensors.

    An object that holds tensors, such as a cache or a distribution, is a container of its
    attributes. An object without tensors that equals only itself becomes a :class:`TypeName`, or a
    plain string inside another object.
    """
    leaves: list[tuple[str, Any]] = []
    return Flat(_walk(tree, "", (), leaves), leaves)


def tensors_by_path(tree: Any) -> dict[str, torch.Tensor]:
    """The tensors of a tree, also in attributes of objects."""
    return {path: x for path, x in flatten(tree).leaves if isinstance(x, torch.Tensor)}


def result_tensors(tree: Any, depth: int = _DEPTH) -> list[torch.Tensor]:
    """The tensors in a result, also inside objects; simple enough for Dynamo to trace."""
    tensors: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif isinstance(leaf, (*_VALUES, *_CODE)) or depth == 0:
            continue
        elif isinstance(leaf, (Mapping, list, tuple)):
            parts = leaf.values() if isinstance(leaf, Mapping) else leaf
            tensors += result_tensors(list(parts), depth - 1)
        else:
            values = [getattr(leaf, name) for name in attribute_names(leaf)]
            tensors += result_tensors(values, depth - 1)
    return tensors


def holds_tensor(thing: Any, depth: int = _DEPTH) -> bool:
    """Whether it is or contains a tensor or array."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return True
    parts = _parts_of(thing, depth)
    deeper = depth if not pytree.tree_is_leaf(thing) else depth - 1
    return any(holds_tensor(part, deeper) for _, part in parts or ())


def pieces(x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Views of parts of a tensor, small enough to be copied in float64."""
    most = _PIECE * (16 if x.is_cuda else 1)
    if x.numel() <= most or x.layout is not torch.strided:
        return (x,)
    if rows := most // (x.numel() // len(x)):
        return torch.split(x, rows)
    return [piece for row in x for piece in pieces(row)]


def attribute_names(thing: Any) -> list[str]:
    """The fields of a dataclass; the attributes and slots of any other object."""
    if dataclasses.is_dataclass(thing):
        return [f.name for f in dataclasses.fields(thing) if hasattr(thing, f.name)]
    names = set(getattr(thing, "__dict__", ()))
    for cls in type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names.update([slots] if isinstance(slots, str) else slots)
    return sorted(
        name for name in names - {"__dict__", "__weakref__"} if hasattr(thing, name)
    )


def _walk(thing: Any, path: str, inside: tuple[int, ...], leaves: Parts) -> str:
    """Add the leaves of a part and return its structure: name, and structures by key; ``*``.

    ``inside`` has the ids of its parents, against reference cycles.
    """
    thing = _plain(thing)
    parts = None if id(thing) in inside else _parts_of(thing, _DEPTH)
    if parts is None:
        if _is_opaque(thing):
            name = (
                f"a {_name(thing if isinstance(thing, FunctionType) else type(thing))}"
            )
            thing = name if inside else TypeName(name)
        leaves.append((path, thing))
        return "*"
    structure = []
    for key, part in parts:
        is_inner = _is_object(thing) or key is _CONTEXT
        deeper = (*inside, id(thing)) if is_inner else inside
        structure.append(f"{key}: {_walk(part, f'{path}{key}', deeper, leaves)}")
    kind = torch.Tensor if isinstance(thing, torch.Tensor) else type(thing)
    return f"{_name(kind).removeprefix('builtins.')}({', '.join(structure)})"


def _parts_of(thing: Any, depth: int) -> Parts | None:
    """The direct parts of a container; None for other objects."""
    if isinstance(thing, torch.Tensor):
        return _tensor_parts(thing)
    if isinstance(thing, (*_VALUES, *_CODE)):
        return None
    if isinstance(thing, Mapping):
        return [(pytree.MappingKey(key), value) for key, value in thing.items()]
    if not pytree.tree_is_leaf(thing):
        return _registered_parts(thing)
    if isinstance(thing, (list, tuple)):
        return [(pytree.SequenceKey(i), value) for i, value in enumerate(thing)]
    if depth <= 0:
        return None
    parts: Parts = [
        (pytree.GetAttrKey(n), getattr(thing, n)) for n in attribute_names(thing)
    ]
    holds = dataclasses.is_dataclass(thing) or any(
        holds_tensor(x, depth - 1) for _, x in parts
    )
    return parts if holds else None


def _registered_parts(thing: Any) -> Parts:
    """Parts of a container registered with pytree, by its own keys or else by position."""

    def is_part(other: Any) -> bool:
        return other is not thing

    values, spec = pytree.tree_flatten(thing, is_leaf=is_part)
    parts: Parts = [(pytree.SequenceKey(i), value) for i, value in enumerate(values)]
    with contextlib.suppress(ValueError):  # registered without keys
        with_paths, _ = pytree.tree_flatten_with_path(thing, is_leaf=is_part)
        parts = [(path[0], part) for path, part in with_paths]
    if spec.context is not None and not isinstance(spec.context, type):
        parts.append((_CONTEXT, spec.context))
    return parts


def _tensor_parts(tensor: torch.Tensor) -> Parts | None:
    """The parts of a sparse or nested tensor; None for one that has elements."""
    if tensor.is_nested:
        return [(pytree.SequenceKey(i), part) for i, part in enumerate(tensor.unbind())]
    if tensor.layout is torch.strided:
        return None
    sparse = tensor.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    named = {
        "shape": sparse.shape,
        "indices": sparse.indices(),
        "values": sparse.values(),
    }
    return [(pytree.GetAttrKey(name), part) for name, part in named.items()]


def _is_object(thing: Any) -> bool:
    """Whether it holds values only in its attributes."""
    is_container = isinstance(
        thing, (Mapping, list, tuple)
    ) or dataclasses.is_dataclass(thing)
    return pytree.tree_is_leaf(thing) and not is_container


def _plain(thing: Any) -> Any:
    """NumPy arrays and numbers as tensors, or as lists if they are not numeric."""
    if isinstance(thing, (np.ndarray, np.generic)) and not isinstance(
        thing, (float, complex)
    ):
        array = np.asarray(thing)
        return (
            torch.from_numpy(array.copy())
            if array.dtype.kind in "biufc"
            else array.tolist()
        )
    return tuple(thing) if isinstance(thing, torch.Size) else thing


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


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies that stay on a GPU only if it has much room."""
    need: dict[torch.device, int] = {}
    for t in tensors:
        if t.is_cuda:
            need[t.device] = need.get(t.device, 0) + t.numel() * t.element_size()
    full = {
        device
        for device, size in need.items()
        if here().agree(_ROOM * size > torch.cuda.mem_get_info(device)[0], any)
    }
    for device in need.keys() - full:
        spare = need[device] - USUAL_COPIES
        _spare[device] = max(spare, _spare.get(device, 0))
    return [_on_host(t) if t.device in full else t.detach().clone() for t in tensors]


_spare: dict[torch.device, int] = {}


def spare_bytes(device: torch.device) -> int:
    """Bytes of copies that a GPU has held since it had room, and the host would have had else."""
    return _spare.get(device, 0)


def _on_host(x: torch.Tensor) -> torch.Tensor:
    """A copy in memory that a GPU reads and writes by itself, five times as fast as other."""
    try:
        place = torch.empty_like(x, device="cpu", pin_memory=True)
    except RuntimeError:  # the system has no more of it
        return x.detach().to("cpu", copy=True)
    return place.copy_(x.detach())


def is_writable(tensor: torch.Tensor) -> bool:
    """Whether it can be changed in place: not where elements share memory."""
    if tensor.is_inference() or tensor.layout is not torch.strided:
        return not tensor.is_inference()
    return not any(
        s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)
    )


def rebuilt(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a tree in which its tensors and arrays are changed, also those inside objects.

    What occurs twice is changed once. An object that holds none is not copied, unless it is a list,
    a dictionary or a set: a call may add to these.
    """
    twins: dict[int, tuple[Any, Any]] = {}  # the original keeps its id while it is here

    def remembered(leaf: Any, twin: Any) -> Any:
        twins[id(leaf)] = leaf, twin
        return twin

    def copied(leaf: Any) -> Any:
        if id(leaf) in twins:
            return twins[id(leaf)][1]
        if isinstance(leaf, (torch.Tensor, np.ndarray)):
            return remembered(leaf, change(leaf))
        if not holds_tensor(leaf):
            return copy.copy(leaf) if type(leaf) in (list, dict, set) else leaf
        if isinstance(leaf, tuple):  # a user's subclass
            return tuple.__new__(type(leaf), [every(value) for value in leaf])
        twin = remembered(leaf, copy.copy(leaf))
        if isinstance(leaf, list):
            twin[:] = [every(value) for value in leaf]
        elif isinstance(leaf, MutableMapping):
            for key, value in leaf.items():
                twin[key] = every(value)
        for name in attribute_names(leaf):  # frozen ones too
            object.__setattr__(twin, name, every(getattr(leaf, name)))
        return twin

    def every(part: Any) -> Any:
        # Rebuild only what holds a tensor: some classes cannot be rebuilt from their parts.
        return pytree.tree_map(copied, part, is_leaf=lambda x: not holds_tensor(x))

    try:
        return every(tree)
    finally:
        twins.clear()  # the two functions refer to each other, so they live on for a while


def copy_tree(tree: Any) -> Any:
    """A copy without graphs that later calls cannot overwrite (CUDA graphs reuse memory)."""

    def copied(x: Any) -> Any:
        return x.detach().clone() if isinstance(x, torch.Tensor) else x.copy()

    return rebuilt(tree, copied)


def rewritten(old: Any, new: Any) -> Any:
    """A copy of the new inputs in the memory of the old ones, where their tensors fit.

    No tensor knows of it: its version stays, as that of a new tensor whose memory another one had.
    """
    ours, theirs = tensors_by_path(old), tensors_by_path(new)
    places = {
        id(x): ours[path]
        for path, x in theirs.items()
        if path in ours and _fits(ours[path], x)
    }

    def copied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or id(x) not in places:
            return _copied(x)
        places[id(x)].data.copy_(x.data)
        return places[id(x)]

    return rebuilt(new, copied)


def _fits(place: torch.Tensor, x: torch.Tensor) -> bool:
    is_alike = place.shape == x.shape and place.dtype == x.dtype
    return is_alike and place.requires_grad == x.requires_grad and is_writable(place)


def copy_inputs(tree: Any) -> Any:
    """A copy of inputs: a tensor that takes gradients still does."""
    return rebuilt(tree, _copied)


def _copied(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x.copy()
    return x.detach().clone().requires_grad_(x.requires_grad)
