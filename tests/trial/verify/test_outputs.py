"""Views: whatever a model returns can be copied and compared, its caches and distributions too."""

from __future__ import annotations

import copy
import enum
from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from autocompile.trial.values import flatten
from autocompile.trial.verify.compare import compare, mismatch_scale
from autocompile.trial.verify.outputs import (
    LastResults,
    copy_view,
    has_nan,
    has_tensor,
    opaque_types,
)


class Layer:
    def __init__(self, keys: torch.Tensor) -> None:
        self.keys, self.kind = keys, "dynamic"


class Cache:
    """As language models return one: no dataclass, no tensor subclass, equal to itself only."""

    def __init__(self, *layers: Layer) -> None:
        self.layers = list(layers)
        self.owner = self


class Token:
    """Holds nothing that could be compared."""


@dataclass(frozen=True)
class Out:
    logits: torch.Tensor
    cache: Cache


@dataclass(frozen=True)
class Frozen:
    logits: torch.Tensor


def output(scale: float = 1.0) -> dict[str, Any]:
    x = scale * torch.arange(1.0, 7.0)
    return {"outputs": Out(x, Cache(Layer(x + 1), Layer(x + 2)))}


def test_what_a_cache_holds_is_compared() -> None:
    assert compare(output(), output()) is None
    wrong = output()
    wrong["outputs"].cache.layers[1].keys[3] = 99.0
    assert ".cache.layers[1].keys at [3] of axis 0" in str(compare(output(), wrong))
    longer = output()
    longer["outputs"].cache.layers.append(Layer(torch.ones(1)))
    assert "another structure" in str(compare(output(), longer))


def test_a_copy_keeps_what_was_there() -> None:
    first = {**output(), "loss": torch.ones(3, requires_grad=True) * 1}
    kept = copy_view(first)
    first["outputs"].cache.layers[0].keys.zero_()
    with torch.no_grad():
        first["loss"].zero_()
    assert compare(output(), {"outputs": kept["outputs"]}) is None
    assert type(kept["outputs"].cache) is Cache
    assert kept["loss"].tolist() == [1, 1, 1] and not kept["loss"].requires_grad


def with_tensor(*things: Any) -> dict[str, Any]:
    return {"outputs": (torch.ones(2), *things)}


class Rows:
    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth of rows is ambiguous")


Kind = enum.Enum("Kind", "a b")


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (Token(), Token(), object()),
        (3, 3, 4),
        (Kind.a, Kind.a, Kind.b),
        (torch.int8, torch.int8, torch.int16),
        (Rows(), Rows(), Token()),
        (np.array(["a", "b"]), np.array(["a", "b"]), np.array(["a", "c"])),
        (Frozen(torch.ones(3)), Frozen(torch.ones(3)), {"logits": torch.ones(3)}),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_things_without_tensors_are_compared_by_value_or_type(
    one: Any, same: Any, other: Any
) -> None:
    assert compare(with_tensor(one), with_tensor(same)) is None
    assert compare(with_tensor(one), with_tensor(other)) is not None


def test_a_result_of_which_only_the_type_is_compared_is_named() -> None:
    assert opaque_types(with_tensor(Token())) == {f"a {__name__}.Token"}
    assert opaque_types(with_tensor("text", Kind.a, torch.int8)) == set()
    assert opaque_types(output()) == set()
    assert not has_tensor({"outputs": Token()})


def test_nan_is_seen_inside_objects() -> None:
    view = output()
    assert has_tensor(view) and not has_nan(view)
    view["outputs"].cache.layers[0].keys[0] = torch.nan
    assert has_nan(view)


def test_modules_and_functions_are_compared_by_name_and_not_entered() -> None:
    """Each side has its own: the compiled one's belong to a copy of the model."""

    def view(module: torch.nn.Module) -> dict[str, Any]:
        return {
            "outputs": [torch.ones(2), module, module.forward, lambda: None, len, Token]
        }

    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert compare(view(first), view(second)) is None
    assert compare(view(first), view(torch.nn.ReLU())) is not None
    assert "a torch.nn.modules.linear.Linear" in opaque_types(view(first))
    assert [leaf for _, leaf in flatten([len, Token, copy]).leaves] == [
        len,
        Token,
        copy,
    ]


# --- what libraries return ----------------------------------------------------------------------


class LibraryOutput(OrderedDict):
    """As diffusers and Transformers define theirs: registered without names for its parts."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.__dict__.update(values)


pytree.register_pytree_node(
    LibraryOutput,
    lambda output: (list(output.values()), list(output)),
    lambda values, names: LibraryOutput(**dict(zip(names, values, strict=True))),
)


class Table:
    """As TensorDict is registered: what is no leaf is in the context, and it checks its values."""

    def __init__(
        self, values: dict[str, torch.Tensor], rows: int, scale: torch.Tensor
    ) -> None:
        assert all(isinstance(value, torch.Tensor) for value in values.values())
        self.values, self.rows, self.scale = values, rows, scale


def _context(table: Table) -> dict[str, Any]:
    return {"names": list(table.values), "rows": table.rows, "scale": table.scale}


pytree.register_pytree_node(
    Table,
    lambda table: (list(table.values.values()), _context(table)),
    lambda values, context: Table(
        dict(zip(context["names"], values, strict=True)),
        context["rows"],
        context["scale"],
    ),
    flatten_with_keys_fn=lambda table: (
        [(pytree.MappingKey(name), value) for name, value in table.values.items()],
        _context(table),
    ),
)


class Named(NamedTuple):
    logits: torch.Tensor
    state: tuple[torch.Tensor, ...]


@dataclass
class Nested:
    inner: Frozen
    more: dict[str, Any]


@dataclass
class Registered:
    logits: torch.Tensor
    count: int


pytree.register_dataclass(Registered, field_names=["logits", "count"])


class Slots:
    __slots__ = ("logits",)

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Odd(dict):  # type: ignore[type-arg]
    """A dictionary that pytree does not know."""


class Pair(tuple):  # type: ignore[type-arg]
    """A tuple that pytree does not know."""


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "library output": lambda x: LibraryOutput(sample=x),
    "library output of objects": lambda x: LibraryOutput(
        dist=torch.distributions.Normal(x, x.abs() + 1), cache=Cache(Layer(x))
    ),
    "table": lambda x: Table({"a": x}, 6, torch.ones(2)),
    "table's context": lambda x: Table({"a": torch.ones(2)}, 6, x),
    "detections": lambda x: (
        [{"boxes": x, "labels": torch.arange(3)}, {"boxes": x * 2}],
        {},
    ),
    "named tuple": lambda x: Named(torch.ones(2), (x,)),
    "frozen": Frozen,
    "nested": lambda x: Nested(Frozen(torch.ones(2)), {"a": [x]}),
    "registered": lambda x: Registered(x, 3),
    "slots": Slots,
    "odd dictionary": lambda x: Odd(a=x),
    "user dictionary": lambda x: UserDict(a=x),
    "odd tuple": lambda x: Pair([x]),
    "dataclass in an object": lambda x: Cache(Nested(Frozen(x), {})),  # type: ignore[arg-type]
    "array": lambda x: {"a": x.numpy()},
    "array in an object": lambda x: Layer(x.numpy()),
    "number of NumPy": lambda x: np.float32(x[1]),
    "sparse": lambda x: x.to_sparse(),
    "nested tensor": lambda x: torch.nested.nested_tensor([x, x[:2]]),
    "structure of torch": lambda x: x.reshape(2, 3).max(0),
    "mixture": lambda x: torch.distributions.Independent(
        torch.distributions.Normal(x, torch.ones(6)), 1
    ),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", RESULTS)
def test_whatever_a_library_returns_is_copied_and_compared(name: str) -> None:
    def view(scale: float = 1.0) -> dict[str, Any]:
        return {"outputs": RESULTS[name](scale * torch.arange(1.0, 7.0))}

    assert has_tensor(view()) and not has_nan(view())
    copied = copy_view(view())
    assert type(copied["outputs"]) is type(view()["outputs"])
    assert compare(view(), copied) is None
    assert LastResults(view()).overwritten() == []
    assert "is off by" in str(compare(view(), view(1.01)))
    assert mismatch_scale(view(), view(1.01)) > 1e-3
    assert compare(view(), {"outputs": torch.arange(1.0, 7.0)}) is not None
