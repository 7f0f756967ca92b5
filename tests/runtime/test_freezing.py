"""Frozen weights: everything that Dynamo takes as a constant is watched, and let go of in time."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.convert_frame import compile_lock
from torch._inductor.codecache import PyCodeCache

from autocompile.runtime.weights.freezing import Frozen


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


class Statistics:
    """As RL code keeps them: no module, and hung on one."""

    def __init__(self) -> None:
        self.mean = torch.zeros(8)


class Normalizing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.running, self.stats = Statistics(), {"scale": [torch.ones(8)]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.running.mean) * self.stats["scale"][0]


class Parts(nn.Sequential):
    """A part may be put in later."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


CHANGES: dict[type[nn.Module], list[Callable[[Any], Any]]] = {
    Hiding: [
        lambda model: model.scale.fill_(3.0),
        lambda model: model.hidden[0].weight.add_(1.0),
        lambda model: setattr(model, "scale", torch.full((8,), 2.0)),
    ],
    Normalizing: [
        lambda model: model.running.mean.add_(1.0),
        lambda model: model.stats["scale"][0].mul_(3.0),
        lambda model: setattr(model.running, "mean", torch.full((8,), 5.0)),
    ],
    Parts: [
        lambda model: setattr(model, "2", nn.Linear(8, 8)),
        lambda model: model[2].weight.add_(1.0),
    ],
}


@pytest.mark.parametrize("kind", CHANGES)
def test_whatever_the_model_reads_is_watched(kind: type[nn.Module]) -> None:
    model, x = kind(), torch.randn(4, 8)
    frozen = Frozen(model, model, {"backend": "inductor"})
    torch.testing.assert_close(frozen(x), model(x))
    for change in CHANGES[kind]:
        change(model)
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


def test_a_parameter_of_nobody_is_watched_too() -> None:
    weight, x = nn.Parameter(torch.ones(8)), torch.randn(4, 8)
    frozen = Frozen(lambda x: x * weight, nn.Module(), {"backend": "inductor"})
    for _ in range(2):
        torch.testing.assert_close(frozen(x), x * weight)
        weight.add_(1.0)


class Breaking(nn.Module):
    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self.first, self.second, self.size = nn.Linear(8, 8), nn.Linear(8, 8), size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if len(x) > self.size:
            torch._dynamo.graph_break()
        return self.second(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("size", [0, 4])
def test_a_graph_that_breaks_is_refused_in_words(size: int) -> None:
    """What follows a break would keep the weights that it was compiled with."""
    model = Breaking(size)
    frozen = Frozen(model, model, {"backend": "inductor"})
    if size:  # it breaks at other sizes only
        x = torch.randn(size, 8)
        torch.testing.assert_close(frozen(x), model(x))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the graph breaks"):
            frozen(torch.randn(6, 8))


def test_what_a_call_raises_leaves_nothing_unchecked() -> None:
    model, x = Breaking(), torch.randn(4, 8)
    frozen = Frozen(model, model, {"backend": "inductor"})
    with pytest.raises(RuntimeError):
        frozen(torch.randn(4, 7))
    with pytest.raises(RuntimeError, match="the graph breaks"):
        frozen(x)


def test_what_another_thread_compiles_meanwhile_is_left_alone() -> None:
    model, other, x = nn.Linear(8, 8), nn.Linear(8, 3), torch.randn(4, 8)
    frozen, live = Frozen(model, model, {"backend": "inductor"}), torch.compile(other)
    with ThreadPoolExecutor(1) as pool:
        with compile_lock:
            calling = pool.submit(torch.no_grad()(frozen), x)
            time.sleep(0.5)  # it waits for the lock by then
            known = len(PyCodeCache.modules)
            live(x)
            theirs = PyCodeCache.modules[known:]
        torch.testing.assert_close(calling.result(), model(x))
    model.weight.add_(1.0)
    torch.testing.assert_close(frozen(x), model(x))
    assert theirs and all(module in PyCodeCache.modules for module in theirs)
    other.weight.add_(1.0)
    torch.testing.assert_close(live(x), other(x))


def test_threads_may_call_it_while_weights_change() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    frozen, done = Frozen(model, model, {"backend": "inductor"}), threading.Event()

    def call() -> None:
        with torch.no_grad():
            while not done.is_set():
                frozen(x)

    with ThreadPoolExecutor(2) as pool:
        calling = [pool.submit(call) for _ in range(2)]
        try:
            for _ in range(3):
                model[0].weight.mul_(1.5)
                torch.testing.assert_close(frozen(x), model(x))
        finally:
            done.set()
        for each in calling:
            each.result()  # raises what the thread has raised
    assert not torch._inductor.config.freezing


def test_the_last_artifact_goes_when_the_next_comes() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(4, 8)
    frozen = Frozen(model, model, {"backend": "inductor"})
    counts = []
    gc.collect()  # what other tests have left
    for _ in range(3):
        model[0].weight.add_(1.0)
        torch.testing.assert_close(frozen(x), model(x))
        counts.append(len(PyCodeCache.modules))
    assert counts[0] == counts[1] == counts[2]


def test_gradients_are_refused_in_words() -> None:
    model = nn.Linear(3, 3)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="frozen weights have no gradients"):
        Frozen(model, model, {"backend": "inductor"})(torch.ones(1, 3))


def test_shapes_beyond_the_limit_of_specialisations_are_computed_in_eager_mode() -> None:
    model = nn.Linear(8, 8)
    frozen = Frozen(model, model, {"backend": "inductor", "dynamic": False})
    with torch._dynamo.config.patch(recompile_limit=2):
        for size in (1, 2, 3, 4, 1):
            x = torch.randn(size, 8)
            torch.testing.assert_close(frozen(x), model(x))
