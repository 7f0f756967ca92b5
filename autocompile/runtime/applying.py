"""How the value of a dimension is applied to a model or to the process: one function for each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch.utils import _pytree as pytree

from autocompile.settings.config import CompileConfig

__all__ = [
    "MODEL",
    "PROCESS",
    "backward_within",
    "prepare_model",
    "process_of",
    "process_state",
    "set_process",
    "within",
]

Called = TypeVar("Called", bound=Callable[..., Any])


def _lay_out(model: torch.nn.Module, value: str) -> None:
    # Of the weights of convolutions: a tensor without four dimensions stays as it is.
    cast(Any, model).to(memory_format=getattr(torch, value))


MODEL: Mapping[str, Callable[[torch.nn.Module, Any], None]] = {"memory_format": _lay_out}
"""In place, before anything is compiled."""


def _precision() -> str | tuple[str, ...]:
    """By its name, or where torch's newer switches were used what these are."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return tuple(each.fp32_precision for each in _products())


def _set_precision(value: str | tuple[str, ...]) -> None:
    if isinstance(value, str):
        torch.set_float32_matmul_precision(value)
        return
    for each, precision in zip(_products(), value, strict=True):
        each.fp32_precision = precision


def _products() -> tuple[Any, ...]:
    """What has a newer switch that the older name changes."""
    backends: Any = torch.backends
    return backends.cuda.matmul, backends.mkldnn.matmul


PROCESS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "precision": (_precision, _set_precision),
}
"""What torch has one of for the whole process: how it is read, and how it is set."""


def prepare_model(model: torch.nn.Module, config: CompileConfig) -> None:
    """Do to the model itself, in place, what a setting asks for before anything is compiled."""
    for dimension, value in config.changed("model"):
        MODEL[dimension.name](model, value)


def process_state(names: Iterable[str] = PROCESS) -> dict[str, Any]:
    """What the process has of these dimensions."""
    return {name: PROCESS[name][0]() for name in names}


def set_process(values: Mapping[str, Any]) -> None:
    """Set these for the process, from now on."""
    for name, value in values.items():
        PROCESS[name][1](value)


@contextlib.contextmanager
def process_of(values: Mapping[str, Any]) -> Iterator[None]:
    """Set these for the process inside the context, and restore what it had."""
    before = {name: x for name, x in process_state(values).items() if x != values[name]}
    try:
        set_process({name: values[name] for name in before})
        yield
    finally:
        set_process(before)


def within(function: Called, values: Mapping[str, Any]) -> Called:
    """A function that sets these for the process while it runs; the same if there are none."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with process_of(values):
            return function(*args, **kwargs)

    return cast(Called, called) if values else function


def backward_within(result: Any, values: Mapping[str, Any]) -> None:
    """Set these for the process also while gradients pass through a result's tensors."""

    def begin(_: torch.Tensor) -> None:
        inside = contextlib.ExitStack()
        inside.enter_context(process_of(values))
        cast(Any, torch.autograd.Variable)._execution_engine.queue_callback(inside.close)

    for x in pytree.tree_leaves(result):
        if isinstance(x, torch.Tensor) and x.grad_fn is not None:  # not a parameter, which stays
            x.register_hook(begin)  # type: ignore[no-untyped-call]
