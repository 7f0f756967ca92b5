"""How the value of a dimension is applied to a model or to the process: one function for each."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from autocompile.settings.config import CompileConfig


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


_lock = threading.Lock()
_wanted: list[dict[tuple[str, int], Any]] = []
"""What is wanted of the process at this moment; the last one wins."""
_before: dict[tuple[str, int], Any] = {}
"""What the process had, to be put back when nothing is wanted."""


def _begin(values: Mapping[str, Any]) -> Callable[[], None]:
    """Set values; returns what ends it, in whatever order several end.

    Those of a backward pass end in the order of their beginning.
    """
    # torch has a number of threads for each thread.
    mine = {(n, threading.get_ident() if n == "threads" else 0): v for n, v in values.items()}
    with _lock:
        for place, value in mine.items():
            _before.setdefault(place, PROCESS[place[0]][0]())
            _change(place[0], value)
        _wanted.append(mine)
    return functools.partial(_end, mine)


def _end(mine: dict[tuple[str, int], Any]) -> None:
    with _lock:
        _wanted[:] = [each for each in _wanted if each is not mine]
        for place in mine:
            others = [each[place] for each in _wanted if place in each]
            _change(place[0], others[-1] if others else _before.pop(place))


def _change(name: str, value: Any) -> None:
    read, write = PROCESS[name]
    if read() != value:
        write(value)


@contextlib.contextmanager
def process_of(values: Mapping[str, Any]) -> Iterator[None]:
    """Set these for the process inside the context, and restore what it had."""
    end = _begin(values)
    try:
        yield
    finally:
        end()


def backward_within(result: Any, values: Mapping[str, Any]) -> None:
    """Set these for the process also in the backward pass, from a result's tensors to its end."""
    ends: list[Callable[[], None]] = []

    def end() -> None:
        while ends:
            ends.pop()()

    def begin(_: torch.Tensor) -> None:
        if not ends:
            ends.append(_begin(values))
            cast(Any, torch.autograd.Variable)._execution_engine.queue_callback(end)

    for x in pytree.tree_leaves(result):
        if isinstance(x, torch.Tensor) and x.grad_fn is not None:  # not a parameter, which stays
            x.register_hook(begin)  # type: ignore[no-untyped-call]
