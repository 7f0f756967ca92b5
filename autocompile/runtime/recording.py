"""Notes what a model is called with: ``autocompile.record``, and ``autocompile record`` by it.

Noted are shapes, dtypes, devices and plain arguments, and of integers the least and the greatest
value; nothing of what tensors hold, and no text that is longer than a name.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import runpy
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from autocompile.errors import UsageError
from autocompile.store.call_journal import Journal
from autocompile.store.reading import plain
from autocompile.store.recorded_calls import RecordedCalls, TensorShape

_LONGEST = 40  # characters of a text argument, which is a name then and no content
_KEPT = 100_000  # calls, so that a server that runs for days stays small


@dataclass
class Recorder:
    """The calls of one module."""

    model: str
    # A call as JSON, and its number.
    distinct: dict[str, int] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)

    def note(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if len(self.order) < _KEPT:
            text = _text_of(args, kwargs)
            self.order.append(self.distinct.setdefault(text, len(self.distinct)))

    def write(self, path: Path) -> None:
        """Write the file of calls; a UsageError if there was none."""
        if not self.order:
            raise UsageError(
                f"no call of {self.model} was seen, so there is nothing to write to {path}",
                hint="call the model itself, as in model(x), inside the context",
            )
        calls = RecordedCalls(
            self.model, tuple(map(json.loads, self.distinct)), tuple(self.order)
        )
        try:
            calls.write(path)
        except OSError as error:
            raise UsageError(
                f"cannot write the calls to {path}: {error.strerror}"
            ) from error


@contextlib.contextmanager
def record(model: torch.nn.Module, path: str | os.PathLike[str]) -> Iterator[None]:
    """Note the calls of a module inside the context, and write them to a file at its end.

    The file is for ``autocompile tune model.py --calls``. A UsageError if there was no call, or it
    cannot be written.
    """
    recorder = Recorder(_name_of(model))
    # Around what a call of the module runs, compiled or not. Not a hook: what has compiled sees no
    # hook of later, and what compiles inside the context would keep it.
    name = "_compiled_call_impl" if model._compiled_call_impl else "_call_impl"
    is_own, call = name in vars(model), getattr(model, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            recorder.note(args, kwargs)
        return call(*args, **kwargs)

    vars(model)[name] = noted
    try:
        yield
    finally:
        if is_own:
            vars(model)[name] = call
        else:
            del vars(model)[name]
        # An error of the user's own goes first.
        if recorder.order or sys.exc_info()[0] is None:
            recorder.write(Path(path))


def _name_of(model: torch.nn.Module) -> str:
    return type(getattr(model, "_orig_mod", model)).__name__


def _text_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A call as JSON, without contents."""
    call = {
        "args": [_shape_of(value) for value in args],
        "kwargs": {name: _shape_of(value) for name, value in kwargs.items()},
    }
    return json.dumps(call, allow_nan=False)


def _shape_of(value: Any) -> Any:
    """The JSON of an argument without its contents."""
    if isinstance(value, torch.Tensor):
        low = high = None
        try:
            is_whole = not value.is_floating_point() and not value.is_complex()
            if is_whole and value.numel():
                low, high = (int(x) for x in value.aminmax())
            shape = (*value.shape,)
            is_plain = value.layout is torch.strided and not value.is_nested
            if not is_plain:
                return {"object": type(value).__name__}
        except (
            RuntimeError,
            NotImplementedError,
        ):  # sparse, nested, without numbers, ...
            return {"object": type(value).__name__}
        dtype = str(value.dtype).removeprefix("torch.")
        return {
            "tensor": plain(TensorShape(shape, dtype, value.device.type, low, high))
        }
    if type(value) is list:
        return [_shape_of(each) for each in value]
    if type(value) is tuple:
        return {"tuple": [_shape_of(each) for each in value]}
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {"dict": {key: _shape_of(each) for key, each in value.items()}}
    is_number = type(value) is float and math.isfinite(value)
    is_name = type(value) is str and len(value) <= _LONGEST
    if value is None or is_number or is_name or type(value) in (bool, int):
        return value
    return {"object": type(value).__name__}


def _record_program(path: Path, argv: list[str]) -> None:
    """Run a program as ``__main__`` and note the calls of its modules in a journal."""
    journal, numbers = Journal(path), itertools.count()
    # Weak: a program may make modules in each step, and drop them.
    keys: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
    call: Callable[..., Any] = torch.nn.Module.__call__
    inside = threading.local()

    def note(module: torch.nn.Module, text: str, seconds: float) -> None:
        name, has_weights = _name_of(module), any(True for _ in module.parameters())
        # One key for all that have none, such as a loss, of which there may be many.
        key = keys.setdefault(module, f"{name} {next(numbers)}") if has_weights else ""
        journal.add(key or name, name, has_weights, text, seconds)

    def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        is_part = getattr(inside, "is_module", False) or hasattr(module, "_is_replica")
        if torch.compiler.is_compiling() or is_part:
            return call(module, *args, **kwargs)
        text = _text_of(args, kwargs)  # before the call, which may change them
        inside.is_module, began = True, time.perf_counter()
        try:
            return call(module, *args, **kwargs)
        finally:
            seconds = time.perf_counter() - began
            inside.is_module = False
            note(module, text, seconds)

    torch.nn.Module.__call__ = called  # type: ignore[method-assign]
    sys.argv = argv
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    _record_program(Path(sys.argv[1]), sys.argv[2:])
