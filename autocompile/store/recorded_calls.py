"""A file of calls: what a model was called with, in order, as shapes and plain arguments.

It is data and never code: inputs of these shapes are made from it, with values drawn at random.
``autocompile.record`` writes it, ``autocompile tune --calls`` reads it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autocompile.errors import UsageError
from autocompile.settings.phases import phase_of
from autocompile.store.reading import demand_schema, made, plain

SCHEMA = 1
MOST = 256
"""Calls that a workload takes; a few dozen stand for all."""
PERCENTILES = {"p50": 50, "p95": 95, "p99": 99}
"""Of the calls of a workload, by the names that an objective or a limit has."""
_MOST_ELEMENTS = 2**31  # of a tensor: a damaged file must not take all memory
_HOW = "with autocompile.record(model, 'calls.json'): ...   writes one"
_NOT_ONE = "this is no file of calls"


@dataclass(frozen=True)
class TensorShape:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: str  # its name in torch, such as float32
    device: str = "cpu"
    low: int | None = None  # the least value that was seen, of integers and booleans
    high: int | None = None


@dataclass(frozen=True)
class RecordedCalls:
    """The calls of one model, each as ``{"args": [...], "kwargs": {...}}``.

    A tensor is ``{"tensor": {...}}``, a tuple ``{"tuple": [...]}``, a dictionary ``{"dict":
    {...}}``, and what no file can hold ``{"object": its class}``.
    """

    model: str  # the name of its class
    # Calls that differ in shapes or plain arguments.
    distinct: tuple[Mapping[str, Any], ...]
    order: tuple[int, ...]  # which of these each call was

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedCalls:
        """Read the calls that a workload takes; a TypeError or ValueError if they are none."""
        order = made(tuple[int, ...], data.get("order"), "order")[:MOST]
        distinct = made(tuple[dict[str, Any], ...], data.get("distinct"), "distinct")
        model = made(str, data.get("model"), "model")
        calls = cls(model, distinct[: 1 + max(order, default=0)], order)
        if not calls.order or not all(
            0 <= n < len(calls.distinct) for n in calls.order
        ):
            raise ValueError("order names no call, or one that is not there")
        for call in calls.distinct:
            _demand_value(made(list[Any], call.get("args"), "args"))
            _demand_value({"dict": made(dict[str, Any], call.get("kwargs"), "kwargs")})
        return calls

    def write(self, path: Path) -> None:
        data = {"schema": SCHEMA, **plain(self)}
        path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", "utf-8")

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self.distinct[number] for number in self.order[:MOST])


def read_calls(path: Path) -> RecordedCalls:
    """Read a file of calls; a UsageError if it is none, damaged or of a newer version."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"cannot read the calls in {path}: {error.strerror}", hint=_HOW
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not JSON: {_NOT_ONE}", str(error), hint=_HOW
        ) from error
    demand_schema(path, data, SCHEMA)
    try:
        return RecordedCalls.from_dict(data)
    except (TypeError, ValueError, RecursionError) as error:
        what = f"{path} is damaged: {_NOT_ONE} that can be read"
        raise UsageError(what, f"{type(error).__name__}: {error}", hint=_HOW) from error


def _demand_value(value: Any) -> None:
    if isinstance(value, list):
        for each in value:
            _demand_value(each)
    elif isinstance(value, dict):
        ((kind, inner),) = value.items()
        if kind == "tensor":
            shape = made(TensorShape, inner, "tensor")
            if (
                any(size < 0 for size in shape.shape)
                or math.prod(shape.shape) > _MOST_ELEMENTS
            ):
                raise ValueError(f"a tensor of shape {shape.shape}")
        elif kind == "tuple":
            _demand_value(made(list[Any], inner, kind))
        elif kind == "dict":
            _demand_value(list(made(dict[str, Any], inner, kind).values()))
        elif kind != "object":
            raise ValueError(f"{kind!r} is no kind of value")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    elif not isinstance(value, (str, int, float, type(None))):
        raise ValueError(f"{value!r} is no value")


def workload_of(phase: str, target: Mapping[str, Any]) -> dict[str, Any]:
    """How many calls a pass has and of how many kinds, as a probe found; empty for one call."""
    found = dict(target.get("workload") or {})
    is_there = phase in found.pop("phases", [phase]) and phase_of(phase).has_batch_size
    return found if is_there else {}
