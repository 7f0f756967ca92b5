"""Inputs that are made from a file of calls, with random values in the shapes that were seen.

A file says what the model was called with. A user's own step or loss gets whole inputs and takes
them apart, so each call has the form of the inputs that the target gives itself.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from autocompile.errors import TargetError
from autocompile.store.recorded_calls import RecordedCalls
from autocompile.trial.model.calls import Arguments, Workload

_Split = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call: those by place and those by name."""


def from_file(
    recorded: RecordedCalls, forward: Callable[..., Any], like: Any = None
) -> Workload:
    """Inputs of the shapes in a file, with random values; integers within what was seen.

    Args:
        forward: the model's, whose signature has the names of arguments by place.
        like: the inputs of one call as the target gives them itself; None if it gives none.

    Raises:
        TargetError: an argument that no file can hold.
    """

    def inputs(call: Mapping[str, Any]) -> Any:
        args = tuple(_value(x, f"argument {n}") for n, x in enumerate(call["args"]))
        named = {name: _value(x, name) for name, x in call["kwargs"].items()}
        return in_form(args, named, forward, like)

    return Workload(map(inputs, recorded))


def in_form(
    args: tuple[Any, ...], named: dict[str, Any], forward: Callable[..., Any], like: Any
) -> Any:
    """The arguments of a call as inputs in the form of ``like``, where the signature allows it.

    Returns:
        A dict of arguments by name, a tuple of those by place, :class:`Arguments` of both; or the
        only argument itself, if it is no collection and ``like`` is no tuple or list.
    """
    if isinstance(like, Mapping):
        args, named = _by_name(args, named, forward)
    elif like is not None:
        args, named = _by_place(args, named, forward)
    if args and named:
        return Arguments((args, named))
    if named:
        return named
    # A collection alone would be taken for all arguments.
    is_alone = len(args) == 1 and not isinstance(args[0], (tuple, list, dict))
    if is_alone and not isinstance(like, (tuple, list)):
        return args[0]
    return args


def _by_name(
    args: tuple[Any, ...], named: dict[str, Any], forward: Callable[..., Any]
) -> _Split:
    names: list[str] = []
    for p in inspect.signature(forward).parameters.values():
        # Those after it, such as *args, have no name that an argument by place could be given.
        if p.kind is not p.POSITIONAL_OR_KEYWORD:
            break
        names.append(p.name)
    if len(args) > len(names):
        return args, named
    by_place = dict(zip(names, args, strict=False))
    return (), {**by_place, **named}


def _by_place(
    args: tuple[Any, ...], named: dict[str, Any], forward: Callable[..., Any]
) -> _Split:
    with contextlib.suppress(TypeError):  # what does not fit, the call itself tells
        bound = inspect.signature(forward).bind(*args, **named)
        return bound.args, bound.kwargs
    return args, named


def _value(recorded: Any, name: str) -> Any:
    if isinstance(recorded, list):
        return [_value(each, name) for each in recorded]
    if not isinstance(recorded, dict):
        return recorded
    # What JSON has no form for is an object of one key, which says what it is.
    ((kind, inner),) = recorded.items()
    if kind == "tuple":
        return tuple(_value(each, name) for each in inner)
    if kind == "dict":
        return {key: _value(each, f"{name}[{key!r}]") for key, each in inner.items()}
    if kind == "object":
        raise TargetError(
            f"the file of calls cannot hold {name}, which is a {inner}",
            hint="write get_calls(), which makes it",
        )
    return _tensor(inner)


def _tensor(recorded: Mapping[str, Any]) -> torch.Tensor:
    """Random values of a recorded shape and dtype; integers between the least and most seen."""
    shape = recorded["shape"]
    dtype = getattr(torch, recorded["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        name = repr(recorded["dtype"])
        raise TargetError(f"the file of calls has a tensor of dtype {name}")
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape).to(dtype)
    # Not known of an empty tensor.
    low, high = recorded.get("low") or 0, recorded.get("high") or 0
    return torch.randint(low, high + 1, shape).to(dtype)
