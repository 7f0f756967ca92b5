"""How the value of a dimension is applied to a model or to the process: one function for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch

from autocompile.settings.config import CompileConfig

__all__ = ["MODEL", "PROCESS", "prepare_model", "process_of", "process_state", "set_process"]


def _lay_out(model: torch.nn.Module, value: str) -> None:
    # Of the weights of convolutions: a tensor without four dimensions stays as it is.
    cast(Any, model).to(memory_format=getattr(torch, value))


MODEL: Mapping[str, Callable[[torch.nn.Module, Any], None]] = {"memory_format": _lay_out}
"""In place, before anything is compiled."""

PROCESS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}
"""What torch has one of for the whole process: how it is read, and how it is set."""


def prepare_model(model: torch.nn.Module, config: CompileConfig) -> None:
    """Do to the model itself, in place, what a setting asks for before anything is compiled."""
    for dimension, value in config.changed("model"):
        MODEL[dimension.name](model, value)


def process_state(names: Iterable[str] = PROCESS) -> dict[str, Any]:
    """What the process has of these dimensions.

    Ask only for those that matter: torch gives no precision where its newer switches were used.
    """
    return {name: PROCESS[name][0]() for name in names}


def set_process(values: Mapping[str, Any]) -> None:
    """Set these for the process, from now on."""
    for name, value in values.items():
        PROCESS[name][1](value)


@contextlib.contextmanager
def process_of(values: Mapping[str, Any]) -> Iterator[None]:
    """Set these for the process inside the context, and restore what it had."""
    before = process_state(values)
    try:
        set_process(values)
        yield
    finally:
        set_process(before)
