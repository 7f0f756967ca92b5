"""Inputs that are made from a file of calls, with random values in the shapes that were seen.

A file says what the model was called with. A user's own step or loss gets whole inputs and takes
them apart, so each call has the form of the inputs that the target gives itself.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
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
    if named:
        return Arguments((args, named)) if args else named
    is_alone = len(args) == 1 and not isinstance(args[0], (tuple, list, dict))
    return args[0] if is_alone and not isinstance(like, (tuple, list)) else args


def _by_name(
    args: tuple[Any, ...], named: dict[str, Any], forward: Callable[..., Any]
) -> _Split:
    parameters = inspect.signature(forward).parameters.values()
    either = itertools.takewhile(
        lambda p: p.kind is p.POSITIONAL_OR_KEYWORD, parameters
    )
    names = [p.name for p in either]
    if len(args) > len(names):
        return args, named
    return (), {**dict(zip(names, args, strict=False)), **named}


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
    dtype = getattr(torch, inner["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise TargetError(f"the file of calls has a tensor of dtype {inner['dtype']!r}")
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(inner["shape"]).to(dtype)
    low, high = inner.get("low") or 0, inner.get("high") or 0
    return torch.randint(low, high + 1, inner["shape"]).to(dtype)
