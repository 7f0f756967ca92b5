"""A workload: the calls that one pass makes, in order, and inputs of other values or sizes for it.

A target whose inputs have one shape is a workload of one call, whose inputs are not wrapped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.errors import TargetError, first_words
from autocompile.store.recorded_calls import MOST
from autocompile.trial.values import rebuilt, tensors_by_path

_MOST_SHAPES = 3  # that words about a call name


class Calls(tuple[Any, ...]):
    """The inputs of several calls that a side makes one after another, in order.

    What they are of is in the name of the class.
    """


class Workload(Calls):
    """All calls of the target: what is timed."""


class Sample(Calls):
    """A call of each kind of a workload, or of the first few: what is compared."""


class Period(Calls):
    """Calls of a step after which its optimizers have stepped: what is compared of such a step."""


class Arguments(tuple[Any, ...]):
    """Positional and named arguments of one call."""


def _as_a_tree(kind: type[tuple[Any, ...]]) -> None:
    """Make the parts of a kind of tuple known to pytree, which knows plain tuples only."""

    def flatten(parts: tuple[Any, ...]) -> tuple[list[Any], None]:
        return list(parts), None

    def unflatten(parts: Iterable[Any], _: None) -> tuple[Any, ...]:
        return kind(parts)

    def flatten_with_keys(parts: tuple[Any, ...]) -> tuple[list[Any], None]:
        return [(pytree.SequenceKey(n), part) for n, part in enumerate(parts)], None

    pytree.register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=f"autocompile.{kind.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
    )


for _kind in (Calls, Workload, Sample, Period, Arguments):
    _as_a_tree(_kind)


def from_function(get_calls: Callable[[], Any], place: str) -> Workload:
    """The first calls that a user's ``get_calls`` gives.

    Raises:
        TargetError: it gives none, or fails.
    """
    calls: list[Any] = []
    try:
        calls.extend(itertools.islice(get_calls(), MOST))
    except Exception as error:
        what = f"get_calls() of {place} fails at call {len(calls)}, counted from 0"
        raise TargetError(what, first_words(error)) from error
    if not calls:
        raise TargetError(
            f"get_calls() of {place} yields nothing",
            hint="for length in (128, 37, 512): yield get_inputs(8, length)",
        )
    return Workload(calls)


def first_call(inputs: Any) -> Any:
    """The inputs of one call: the first of several."""
    return inputs[0] if isinstance(inputs, Calls) else inputs


def each_call(check: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A user's ``check`` of the outputs of one call, for those of all calls."""

    def check_all(expected: Any, actual: Any) -> Any:
        answers = [check(*pair) for pair in zip(expected, actual, strict=True)]
        # A check that returns None raises where something is wrong.
        refusals = [each for each in answers if each is not None and not each]
        return refusals[0] if refusals else None

    return check_all


def other_values(first: Calls, other: Calls) -> Calls:
    """Inputs of other values for the same shapes.

    They are ``other`` where that has the shapes of ``first``; else, as where lengths are drawn at
    random, those of ``first`` in another order within each tensor.
    """
    if [*map(shape_of, first)] == [*map(shape_of, other)]:
        return other

    def shuffled(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.numel() < 2:
            return x
        order = torch.randperm(x.numel(), device=x.device)
        mixed = x.detach().reshape(-1)[order].reshape(x.shape)
        return mixed.requires_grad_(x.requires_grad)

    mixed: Calls = rebuilt(first, shuffled)
    return mixed


def shape_of(inputs: Any) -> tuple[Any, ...]:
    """What compiled code may depend on in inputs: shapes and dtypes by path, and plain numbers."""
    found = tensors_by_path(inputs).items()
    tensors = [(path, *x.shape, str(x.dtype)) for path, x in found]
    leaves = pytree.tree_leaves(inputs)
    plain = [x for x in leaves if isinstance(x, (bool, int, float, str))]
    return (*tensors, *plain)


def in_words(inputs: Any) -> str:
    """The shapes of one call, such as ``8×128``; of its first tensors where there are many."""
    tensors = tensors_by_path(inputs).values()
    if not tensors:
        return "no tensor"
    shapes = ["×".join(map(str, x.shape)) or "()" for x in tensors]
    distinct = list(dict.fromkeys(shapes))
    more = " …" if len(distinct) > _MOST_SHAPES else ""
    return ", ".join(distinct[:_MOST_SHAPES]) + more


def kinds(calls: Sequence[Any]) -> list[list[int]]:
    """The positions of calls that are alike, one list for each kind, in order of first use."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, inputs in enumerate(calls):
        groups.setdefault(shape_of(inputs), []).append(number)
    return list(groups.values())


def between(calls: Sequence[Any]) -> Any | None:
    """Inputs of a size that no call has: the largest call, shortened along the axes that differ.

    Axes that have the same sizes in all calls as another are shortened with it. None where calls
    differ in more than sizes, or no size between two of them is free.
    """
    tensors = [tensors_by_path(inputs) for inputs in calls]
    if any(_dims(t) != _dims(tensors[0]) for t in tensors):
        return None
    elements = [sum(x.numel() for x in each.values()) for each in tensors]
    largest = elements.index(max(elements))
    shorter: dict[str, list[tuple[int, int]]] = {}  # axes and their new sizes
    for seen, axes in _differing(tensors).items():
        size = _free_size(seen, seen[largest])
        if size is None:
            return None
        for path, axis in axes:
            shorter.setdefault(path, []).append((axis, size))
    if not shorter:
        return None
    return _shortened(calls[largest], shorter)


def _free_size(seen: Sequence[int], most: int) -> int | None:
    """The size between the least seen and ``most`` that no call has, as near their middle as can be.

    None if there is none.
    """
    middle = (min(seen) + most) // 2
    # From 2, since compiled code has 0 and 1 as constants.
    free = [size for size in range(2, most) if size not in seen]
    return min(free, key=lambda size: abs(size - middle), default=None)


def _shortened(inputs: Any, sizes: Mapping[str, Sequence[tuple[int, int]]]) -> Any:
    """Inputs whose tensors at these paths are cut along axes, each to its new size."""
    # Kept while they are looked up by their id: an array is a tensor only in here.
    tensors = tensors_by_path(inputs)
    paths = {id(x): path for path, x in tensors.items()}

    def cut(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        part = x.detach()
        for axis, size in sizes.get(paths.get(id(x), ""), ()):
            part = part.narrow(axis, 0, size)
        return part.clone().requires_grad_(x.requires_grad)

    return rebuilt(inputs, cut)


def _dims(tensors: Mapping[Any, torch.Tensor]) -> dict[Any, int]:
    return {path: x.dim() for path, x in tensors.items()}


def _differing(
    tensors: Sequence[Mapping[Any, torch.Tensor]],
) -> dict[tuple[int, ...], list[tuple[Any, int]]]:
    """The axes whose sizes differ between calls, as pairs of a tensor's key and axis.

    They are grouped by their sizes at each call. Tensors that a call lacks are left out.
    """
    sizes: dict[tuple[int, ...], list[tuple[Any, int]]] = {}
    for key, x in tensors[0].items():
        if not all(key in each and each[key].dim() == x.dim() for each in tensors):
            continue
        for axis in range(x.dim()):
            seen = tuple(each[key].shape[axis] for each in tensors)
            if len(set(seen)) > 1:
                sizes.setdefault(seen, []).append((key, axis))
    return sizes
