"""Calls whose sizes differ: axes that are marked dynamic, and inputs that are padded to few sizes.

Both look at the tensors that are arguments themselves. What lies deeper, in a list of an argument
for example, is not marked and does not tell a call's size.
"""

from __future__ import annotations

import bisect
import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Function = Callable[..., Any]

_UNPADDED = (
    "autocompile: this call is not padded, since its arguments are not those of the calls that "
    "the settings were measured with; it is right, and may compile anew for its size"
)


def parameters_of(function: Function) -> tuple[str, ...]:
    """The names of the parameters that a function takes by position."""
    try:
        every = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no signature
        return ()
    return tuple(
        p.name for p in every if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )


def as_inputs(
    argument: str | int | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Sequence[str],
) -> Any:
    """A call's arguments as a dict, a tuple or a single value: as ``argument`` names them.

    ``names`` are the parameters, so that it is the same however the caller passes them. None where
    these do not say which is which.
    """
    if len(args) == 1 and not kwargs and isinstance(args[0], (dict, tuple, list)):
        return args[
            0
        ]  # of a function that takes the inputs as a whole, such as a training step
    if isinstance(argument, str):
        by_position = dict(zip(names, args, strict=False))
        return {**by_position, **kwargs} if len(by_position) == len(args) else None
    others = names[len(args) : len(args) + len(kwargs)]
    if kwargs.keys() != {*others}:
        return None
    values = (*args, *(kwargs[name] for name in others))
    if argument is None:
        return values[0] if len(values) == 1 else None
    return values


def tensor_of(
    inputs: Any, argument: str | int | None, axis: int
) -> torch.Tensor | None:
    """The tensor of an argument if it has this axis."""
    value = inputs
    if isinstance(inputs, dict):
        value = inputs.get(argument)
    elif isinstance(inputs, (tuple, list)):
        value = (
            inputs[argument]
            if type(argument) is int and argument < len(inputs)
            else None
        )
    return value if isinstance(value, torch.Tensor) and axis < value.dim() else None


def with_marks(
    function: Function,
    marks: Sequence[tuple[str | int | None, int, int, int]],
    names: Sequence[str],
) -> Function:
    """A compiled function whose inputs are marked dynamic at calls of shapes that are new.

    Programs that were compiled for marked inputs take others too. The marks are removed after the
    call: another function that is compiled for the same tensor may need a constant size.
    """
    if not marks:
        return function
    seen: set[tuple[torch.Size | None, ...]] = set()

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = as_inputs(marks[0][0], args, kwargs, names)
        places = [argument for argument, *_ in marks]
        if inputs is None:  # other arguments than those of the calls that were measured
            inputs = [*args, *map(kwargs.get, names[len(args) :])]
            places = [argument or 0 for argument in places]
        axes = [axis for _, axis, *_ in marks]
        tensors = [
            tensor_of(inputs, *place) for place in zip(places, axes, strict=True)
        ]
        shapes = tuple(None if x is None else x.shape for x in tensors)
        if shapes in seen:
            return function(*args, **kwargs)
        before = [(x, {*vars(x)}) for x in tensors if x is not None]
        for x, (_, axis, low, high) in zip(tensors, marks, strict=True):
            if (
                x is not None and low <= x.shape[axis] <= high
            ):  # else it is an error to Dynamo
                torch._dynamo.mark_dynamic(x, axis, min=low, max=high)
        added = [(x, {*vars(x)} - kept) for x, kept in before]
        try:
            result = function(*args, **kwargs)
        finally:
            for x, attributes in added:
                for name in attributes:
                    vars(x).pop(name, None)
        seen.add(shapes)
        return result

    return call


def with_padding(
    function: Function,
    buckets: tuple[Any, ...],
    names: Sequence[str],
    padding: Mapping[str, Function],
) -> Function:
    """A compiled function that gets its inputs padded to the next of the sizes in a setting.

    Longer calls are made as they are.
    """
    if not buckets:
        return function
    argument, axis, edges, unpads = buckets

    def call(*args: Any, **kwargs: Any) -> Any:
        inputs = as_inputs(argument, args, kwargs, names)
        x = tensor_of(inputs, argument, axis)
        if x is None:
            warnings.warn(_UNPADDED, stacklevel=2)
        size = edges[-1] if x is None else x.shape[axis]
        place = bisect.bisect_left(edges, size)
        if x is None or place == len(edges) or edges[place] == size:
            return function(*args, **kwargs)
        padded = padding["pad"](copy.copy(inputs), edges[place])
        if isinstance(padded, torch.Tensor) or (args and inputs is args[0]):
            result = function(padded)
        elif isinstance(padded, dict):
            result = function(**padded)
        else:
            result = function(*padded)
        return padding["unpad"](result, size) if unpads else result

    return call
