"""Frozen weights: everything that Dynamo takes as a constant is watched, and let go of in time."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.convert_frame import compile_lock
from torch._inductor import config as inductor
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx

from autocompile.runtime.freezing import frozen

pytestmark = pytest.mark.usefixtures("_fresh_dynamo")


def freeze(function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    return frozen(function, {"backend": "inductor", **more})


class Statistics:
    """As RL code keeps them: no module, and hung on one."""

    def __init__(self) -> None:
        self.mean = torch.zeros(8)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Hiding(nn.Sequential):
    """Layers of which one may be replaced, plain tensors, and a module registered nowhere."""

    def __init__(self) -> None:
        super().__init__(Scale(), nn.ReLU())
        self.scale, self.hidden = torch.ones(8), [Scale()]
        self.running, self.stats = Statistics(), {"scale": [torch.ones(8)]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.hidden[0](super().forward(x)) * self.scale
        return (x - self.running.mean) * self.stats["scale"][0]


CHANGES: list[Callable[[Any], Any]] = [
    lambda model: model.scale.fill_(3.0),
    lambda model: model.hidden[0].weight.add_(1.0),
    lambda model: setattr(model, "scale", torch.full((8,), 2.0)),
    lambda model: model.running.mean.add_(1.0),
    lambda model: model.stats["scale"][0].mul_(3.0),
    lambda model: setattr(model.running, "mean", torch.full((8,), 5.0)),
    lambda model: setattr(model, "0", Scale()),
    lambda model: model[0].weight.add_(1.0),
]


def test_whatever_the_model_reads_is_watched() -> None:
    model, x = Hiding(), torch.randn(4, 8)
    called = freeze(model)
    torch.testing.assert_close(called(x), model(x))
    for change in CHANGES:
        change(model)
        torch.testing.assert_close(called(x), model(x))


def test_a_backend_that_inductor_compiles_for_freezes_as_inductor_does() -> None:
    seen = []

    def with_own_pass(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        seen.append((inductor.freezing, len(inputs), len(list(graph.parameters()))))
        return compile_fx(graph, inputs)

    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    called = freeze(model, backend=with_own_pass)
    for _ in range(2):
        torch.testing.assert_close(called(x), model(x))
        model.weight.mul_(-2.0)
    assert seen == [(True, 1, 2)] * 2 and not inductor.freezing


def test_the_step_of_a_fused_optimizer_is_a_change() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    called = freeze(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model.weight.grad = torch.ones(8, 8)
    before, step = model.weight._version, torch.compile(optimizer.step, backend="eager")
    for change in (lambda: None, optimizer.step, step):
        change()
        torch.testing.assert_close(called(x), model(x))
    assert model.weight._version == before + 2


def test_weights_that_have_gradients_are_frozen_again() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x, called = torch.randn(4, 8), freeze(model)
    torch.testing.assert_close(called(x), model(x))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.Adam(model.parameters(), lr=0.1, fused=True).step()
    torch.testing.assert_close(called(x), model(x))


def test_weights_of_no_module_and_of_inference_mode_can_be_frozen() -> None:
    with torch.inference_mode():
        model = nn.Linear(8, 8)  # it counts no writes
    weight, x = nn.Parameter(torch.ones(8)), torch.randn(4, 8)
    called = freeze(lambda x: model(x) * weight)
    for _ in range(2):
        torch.testing.assert_close(called(x), model(x) * weight)
        weight.add_(1.0)


class Breaking(nn.Module):
    """Breaks its graph at more rows than ``size``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first, self.second, self.size = nn.Linear(8, 8), nn.Linear(8, 8), size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if len(x) > self.size:
            torch._dynamo.graph_break()
        return self.second(x)  # type: ignore[no-any-return]


def test_a_graph_that_breaks_is_refused_in_words() -> None:
    """What follows a break would keep the weights that it was compiled with."""
    model, x = Breaking(4), torch.randn(4, 8)
    called = freeze(model)
    with pytest.raises(RuntimeError):  # which leaves nothing unchecked
        called(torch.randn(4, 7))
    torch.testing.assert_close(called(x), model(x))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the graph breaks"):
            called(torch.randn(6, 8))


def test_what_another_thread_compiles_meanwhile_is_left_alone() -> None:
    model, other, x = nn.Linear(8, 8), nn.Linear(8, 3), torch.randn(4, 8)
    called, live = freeze(model), torch.compile(other)
    with ThreadPoolExecutor(1) as pool:
        with compile_lock:
            calling = pool.submit(torch.no_grad()(called), x)
            time.sleep(0.5)  # it waits for the lock by then
            known = len(PyCodeCache.modules)
            live(x)
            theirs = PyCodeCache.modules[known:]
        torch.testing.assert_close(calling.result(), model(x))
    model.weight.add_(1.0)
    torch.testing.assert_close(called(x), model(x))
    assert theirs and all(module in PyCodeCache.modules for module in theirs)
    other.weight.add_(1.0)
    torch.testing.assert_close(live(x), other(x))


def test_threads_may_call_it_while_weights_change() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    called, done = freeze(model), threading.Event()

    @torch.no_grad()
    def call() -> None:
        while not done.is_set():
            called(x)

    with ThreadPoolExecutor(2) as pool:
        calling = [pool.submit(call) for _ in range(2)]
        try:
            for _ in range(3):
                model[0].weight.mul_(1.5)
                torch.testing.assert_close(called(x), model(x))
        finally:
            done.set()
        for each in calling:
            each.result()  # raises what the thread has raised
    assert not torch._inductor.config.freezing


def test_the_last_artifact_goes_when_the_next_comes() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(4, 8)
    called, counts = freeze(model), []
    gc.collect()  # what other tests have left
    for _ in range(3):
        model[0].weight.add_(1.0)
        torch.testing.assert_close(called(x), model(x))
        counts.append(len(PyCodeCache.modules))
    assert counts[0] == counts[1] == counts[2]


def test_gradients_are_refused_in_words() -> None:
    with (
        torch.enable_grad(),
        pytest.raises(RuntimeError, match="frozen weights have no gradients"),
    ):
        freeze(nn.Linear(3, 3))(torch.ones(1, 3))


def test_shapes_beyond_the_limit_of_specialisations_are_computed_in_eager_mode() -> (
    None
):
    model = nn.Linear(8, 8)
    called = freeze(model, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for size in (1, 2, 3, 4, 1):
            x = torch.randn(size, 8)
            torch.testing.assert_close(called(x), model(x))
