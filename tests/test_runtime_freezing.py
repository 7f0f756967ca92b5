"""Frozen weights: everything that Dynamo takes as a constant is watched, and let go of in time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._inductor.codecache import PyCodeCache

from autocompile.runtime.freezing import Frozen


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class Hiding(nn.Module):
    """A plain tensor, and a module that is registered nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(8)
        self.hidden = [nn.Linear(8, 8)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden[0](x) * self.scale  # type: ignore[no-any-return]


def test_what_is_no_parameter_of_the_model_is_watched_too() -> None:
    model, x = Hiding(), torch.randn(4, 8)
    frozen = Frozen(model, model, {"backend": "inductor"})
    for change in (
        lambda: None,
        lambda: model.scale.fill_(3.0),
        lambda: model.hidden[0].weight.add_(1.0),
        lambda: setattr(model, "scale", torch.full((8,), 2.0)),
    ):
        change()
        torch.testing.assert_close(frozen(x), model(x))


def test_the_step_of_a_fused_optimizer_is_a_change() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    frozen = Frozen(model, model, {"backend": "inductor"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model.weight.grad = torch.ones(8, 8)
    before, step = model.weight._version, torch.compile(optimizer.step, backend="eager")
    for change in (lambda: None, optimizer.step, step):
        change()
        torch.testing.assert_close(frozen(x), model(x))
    assert model.weight._version == before + 2


def test_weights_that_count_no_writes_can_be_frozen_where_they_lie() -> None:
    with torch.inference_mode():
        model = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    frozen = Frozen(model, model, {"backend": "inductor"})
    torch.testing.assert_close(frozen(x), model(x))


def test_a_part_that_is_put_in_later_is_watched_too() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(4, 8)
    frozen = Frozen(model, model, {"backend": "inductor"})
    for change in (
        lambda: None,
        lambda: setattr(model, "2", nn.Linear(8, 8)),
        lambda: model[2].weight.add_(1.0),
    ):
        change()
        torch.testing.assert_close(frozen(x), model(x))


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)  # type: ignore[no-any-return]


def test_a_graph_that_breaks_is_refused_in_words() -> None:
    """What follows a break would keep the weights that it was compiled with."""
    model = Breaking()
    frozen = Frozen(model, model, {"backend": "inductor"})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the graph breaks"):
            frozen(torch.randn(4, 8))


def test_the_last_artifact_goes_when_the_next_comes() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(4, 8)
    frozen = Frozen(model, model, {"backend": "inductor"})
    counts = []
    for _ in range(3):
        model[0].weight.add_(1.0)
        torch.testing.assert_close(frozen(x), model(x))
        counts.append(len(PyCodeCache.modules))
    assert counts[0] == counts[1] == counts[2]


def test_gradients_are_refused_in_words() -> None:
    model = nn.Linear(3, 3)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="frozen weights have no gradients"):
        Frozen(model, model, {"backend": "inductor"})(torch.ones(1, 3))
