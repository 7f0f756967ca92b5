"""Views: whatever a model returns can be copied and compared, its caches and distributions too."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from autocompile.trial.verify import compare
from autocompile.trial.view import comparable, copy_view, has_nan, has_tensor, opaque_types


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


def output(scale: float = 1.0) -> dict[str, Any]:
    x = scale * torch.arange(1.0, 7.0)
    return {"outputs": Out(x, Cache(Layer(x + 1), Layer(x + 2)))}


def test_what_a_cache_holds_is_compared() -> None:
    assert compare(output(), output()) is None
    wrong = output()
    wrong["outputs"].cache.layers[1].keys[3] = 99.0
    assert "['cache']['layers'][1]['keys'] is off" in str(compare(output(), wrong))
    longer = output()
    longer["outputs"].cache.layers.append(Layer(torch.ones(1)))
    assert "another structure" in str(compare(output(), longer))


def test_a_copy_keeps_what_was_there() -> None:
    first = output()
    kept = copy_view(first)
    first["outputs"].cache.layers[0].keys.zero_()
    first["outputs"].logits.zero_()
    assert compare(output(), kept) is None
    assert type(kept["outputs"].cache) is Cache
    assert compare(first, kept) is not None


def test_distributions_are_compared_by_their_parameters() -> None:
    def view(shift: float) -> dict[str, Any]:
        logits = torch.linspace(0, 1, 5)
        return {"outputs": torch.distributions.Categorical(logits=logits * (1 + shift))}

    assert compare(view(0), copy_view(view(0))) is None
    assert "is off by" in str(compare(view(0), view(0.5)))


def test_of_an_object_without_tensors_the_type_is_compared() -> None:
    def view(thing: Any) -> dict[str, Any]:
        return {"outputs": (torch.ones(2), thing)}

    assert compare(view(Token()), view(Token())) is None
    assert compare(view(Token()), view(object())) is not None
    assert compare(view(3), view(4)) is not None
    assert opaque_types(view(Token())) == {f"a {__name__}.Token"}
    assert opaque_types(view("text")) == opaque_types(output()) == set()
    assert not has_tensor({"outputs": Token()})


def test_nan_is_seen_inside_objects() -> None:
    view = output()
    assert has_tensor(view) and not has_nan(view)
    view["outputs"].cache.layers[0].keys[0] = torch.nan
    assert has_nan(view)


def test_modules_classes_and_functions_are_not_entered() -> None:
    module = torch.nn.Linear(2, 2)
    assert comparable([module, Token, len, copy])[0] is module
    assert comparable([module, Token, len, copy])[1:] == [Token, len, copy]
