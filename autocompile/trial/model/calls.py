"""A workload: the calls that one pass makes, in order, and inputs of other values or sizes for it.

A target whose inputs have one shape is a workload of one call, whose inputs are not wrapped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autocompile.errors import TargetError, first_words
from autocompile.store.recorded_calls import MOST
from autocompile.trial.values import rebuilt, tensors_by_path


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
    pytree.register_pytree_node(
        kind,
        lambda parts: (list(parts), None),
        lambda parts, _: kind(parts),
        serialized_type_name=f"autocompile.{kind.__name__}",
        flatten_with_keys_fn=lambda parts: (
            [(pytree.SequenceKey(n), part) for n, part in enumerate(parts)],
            None,
        ),
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
        return next(
            (answer for answer in answers if answer is not None and not answer), None
        )

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
    leaves = pytree.tree_leaves(inputs)
    plain = (x for x in leaves if isinstance(x, (bool, int, float, str)))
    tensors = tensors_by_path(inputs).items()
    return (*((path, *x.shape, str(x.dtype)) for path, x in tensors), *plain)


def in_words(inputs: Any) -> str:
    """The shapes of one call, such as ``8×128``; of its first tensors where there are many."""
    shapes = [
        "×".join(map(str, x.shape)) or "()" for x in tensors_by_path(inputs).values()
    ]
    distinct = [*dict.fromkeys(shapes)]
    return ", ".join(distinct[:3]) + (" …" if len(distinct) > 3 else "") or "no tensor"


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
    sizes = _differing(tensors)
    if not sizes:
        return None
    largest = max(
        range(len(calls)), key=lambda n: sum(x.numel() for x in tensors[n].values())
    )
    shorter: dict[str, list[tuple[int, int]]] = {}
    for seen, axes in sizes.items():
        middle = (min(seen) + seen[largest]) // 2
        free = [
            n for n in range(2, seen[largest]) if n not in seen
        ]  # 0 and 1 are constants
        if not free:
            return None
        size = min(free, key=lambda n: abs(n - middle))
        for path, axis in axes:
            shorter.setdefault(path, []).append((axis, size))
    paths = {id(x): path for path, x in tensors[largest].items()}

    def shortened(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        part = x.detach()
        for axis, size in shorter.get(paths.get(id(x), ""), ()):
            part = part.narrow(axis, 0, size)
        return part.clone().requires_grad_(x.requires_grad)

    return rebuilt(calls[largest], shortened)


def _dims(tensors: Mapping[Any, torch.Tensor]) -> dict[Any, int]:
    return {path: x.dim() for path, x in tensors.items()}


def _axes(tensors: Mapping[Any, torch.Tensor]) -> Iterator[tuple[Any, int]]:
    return ((key, axis) for key, x in tensors.items() for axis in range(x.dim()))


def _differing(
    tensors: Sequence[Mapping[Any, torch.Tensor]],
) -> dict[tuple[int, ...], list[tuple[Any, int]]]:
    """The axes whose sizes differ between calls, as pairs of a tensor's key and axis.

    They are grouped by their sizes at each call. Tensors that a call lacks are left out.
    """
    first = tensors[0]
    everywhere = [
        k
        for k, x in first.items()
        if all(k in t and t[k].dim() == x.dim() for t in tensors)
    ]
    sizes: dict[tuple[int, ...], list[tuple[Any, int]]] = {}
    for key, axis in _axes({key: first[key] for key in everywhere}):
        seen = tuple(t[key].shape[axis] for t in tensors)
        if len(set(seen)) > 1:
            sizes.setdefault(seen, []).append((key, axis))
    return sizes
