"""Gradients that add up are right under a compiler that writes them to the same memory each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends import registry
from torch._dynamo.backends.common import aot_autograd

from autocompile.runtime import applying, gradients
from autocompile.runtime.applying import apply_config
from autocompile.runtime.gradients import KeptGradients
from autocompile.settings.config import CompileConfig

LOOPS = ("none_before", "none_after", "kept", "accumulated", "accumulated_and_kept")


def _into_the_same_memory(graph: Any, _: Sequence[Any]) -> Callable[..., Any]:
    """As a CUDA graph does: what it gives lies where its last results did."""
    memory: dict[int, torch.Tensor] = {}

    def run(*args: Any) -> Any:
        results = []
        for place, value in enumerate(graph(*args)):
            if not isinstance(value, torch.Tensor):
                results.append(value)
                continue
            own = memory.setdefault(place, torch.empty_like(value))
            own.copy_(value.detach())
            storage = own.untyped_storage()
            # A tensor of its own, which autograd takes as a gradient without a copy.
            alike = torch.empty(0, dtype=own.dtype).set_(
                storage, 0, own.shape, own.stride()
            )
            results.append(alike)
        return results

    return run


@pytest.fixture
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = aot_autograd(
        fw_compiler=lambda graph, _: graph, bw_compiler=_into_the_same_memory
    )
    # Not by register_backend(), which takes a name once: other tests put the names back.
    monkeypatch.setitem(registry._BACKENDS, "same_memory", None)
    monkeypatch.setitem(registry._COMPILER_FNS, "same_memory", backend)
    monkeypatch.setattr(applying, "uses_cuda_graphs", lambda config: True)
    torch._dynamo.reset()


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def _train(model: nn.Module, loop: str, device: str = "cpu") -> list[torch.Tensor]:
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    drawn = torch.Generator().manual_seed(1)
    for number in range(8):
        x = torch.randn(5, 6, generator=drawn).to(device)
        if loop == "none_before":
            optimizer.zero_grad()
        loss = model(x).square().mean()
        if loop == "none_after":  # in the middle, as much code does
            optimizer.zero_grad()
        if loop == "kept":
            optimizer.zero_grad(set_to_none=False)
        loss.backward()
        if not loop.startswith("accumulated"):
            optimizer.step()
        elif number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad(set_to_none=not loop.endswith("kept"))
    return [p.detach() for p in model.parameters()]


@pytest.mark.usefixtures("_graphs")
@pytest.mark.parametrize("loop", LOOPS)
def test_every_loop_trains_as_in_eager_mode(loop: str) -> None:
    want, model = _train(_net(), loop), _net()
    apply_config(model, "train_step", CompileConfig("same_memory"))
    torch.testing.assert_close(_train(model, loop), want)


@pytest.mark.usefixtures("_graphs")
def test_without_it_gradients_that_add_up_are_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the compiler of these tests is known to do what CUDA graphs do."""
    monkeypatch.setattr(applying, "uses_cuda_graphs", lambda config: False)
    want, model = _train(_net(), "accumulated"), _net()
    apply_config(model, "train_step", CompileConfig("same_memory"))
    got = _train(model, "accumulated")
    assert any(
        not torch.allclose(a, b, rtol=1e-3) for a, b in zip(got, want, strict=True)
    )


@pytest.mark.usefixtures("_graphs")
@pytest.mark.parametrize(("loop", "most"), [("none_before", 0), ("none_after", 1)])
def test_a_program_that_drops_gradients_pays_for_no_copies(
    loop: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, copy_of = 0, gradients._copy_of

    def counted(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal copied
        copied += 1
        return copy_of(gradient)

    monkeypatch.setattr(gradients, "_copy_of", counted)
    model = _net()
    apply_config(model, "train_step", CompileConfig("same_memory"))
    _train(model, loop)
    assert copied == most * len(list(model.parameters()))


@pytest.mark.usefixtures("_graphs")
def test_the_steps_of_another_models_optimizer_do_not_count() -> None:
    results = []
    for is_compiled in (False, True):
        model, other = _net(), nn.Linear(6, 1)
        if is_compiled:
            apply_config(model, "train_step", CompileConfig("same_memory"))
        mine = torch.optim.SGD(model.parameters(), lr=0.1)
        others = torch.optim.SGD(other.parameters(), lr=0.1)
        drawn = torch.Generator().manual_seed(1)
        for number in range(12):
            x = torch.randn(5, 6, generator=drawn)
            model(x).square().mean().backward()
            others.zero_grad()
            other(x).mean().backward()
            others.step()
            if number % 2:
                mine.step()
                mine.zero_grad()
        results.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0])


def _accumulated(is_tuned: bool, optimizer: str, in_closure: bool) -> torch.Tensor:
    """The weights after four steps of two passes each, as Lightning makes them with a closure."""
    model, drawn = _net(), torch.Generator().manual_seed(1)
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    if is_tuned:
        config = CompileConfig("same_memory", optimizer=optimizer)
        apply_config(model, "train_step", config, optimizers=[steps])

    def work() -> torch.Tensor:
        loss = model(torch.randn(5, 6, generator=drawn)).square().mean()
        loss.backward()
        return loss

    for _ in range(4):
        work()
        if in_closure:
            steps.step(work)
        else:
            work()
            steps.step()
        steps.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.usefixtures("_graphs")
@pytest.mark.parametrize("in_closure", [False, True])
@pytest.mark.parametrize("optimizer", ["default", "fused", "compiled"])
def test_a_closure_may_make_the_last_pass(optimizer: str, in_closure: bool) -> None:
    want = _accumulated(False, optimizer, in_closure)
    torch.testing.assert_close(_accumulated(True, optimizer, in_closure), want)


@pytest.mark.usefixtures("_graphs")
def test_optimizers_of_one_model_may_step_at_different_times() -> None:
    results = []
    for is_tuned in (False, True):
        model, drawn = _net(), torch.Generator().manual_seed(1)
        if is_tuned:
            apply_config(model, "train_step", CompileConfig("same_memory"))
        body = torch.optim.SGD(model[0].parameters(), lr=0.1)
        head = torch.optim.SGD(model[2].parameters(), lr=0.1)
        for number in range(8):
            model(torch.randn(5, 6, generator=drawn)).square().mean().backward()
            head.step()
            head.zero_grad()
            if number % 4 == 3:
                body.step()
                body.zero_grad()
        results.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0])


def test_two_optimizers_of_one_part_do_not_step_the_other() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    both = [torch.optim.SGD(model[0].parameters(), lr=0.1) for _ in range(2)]
    kept = KeptGradients(model)
    for optimizer in both:
        kept.note_step(optimizer)
    assert not kept._all_have_stepped()
    both.append(torch.optim.SGD(model[1].parameters(), lr=0.1))
    for optimizer in both[1:]:
        kept.note_step(optimizer)
    assert kept._all_have_stepped()


@pytest.mark.usefixtures("_graphs")
def test_parameters_that_are_unfrozen_may_be_stepped_at_other_times() -> None:
    results = []
    for is_tuned in (False, True):
        model, drawn = _net(), torch.Generator().manual_seed(1)
        if is_tuned:
            apply_config(model, "train_step", CompileConfig("same_memory"))
        body = torch.optim.SGD(model[0].parameters(), lr=0.1)
        head = torch.optim.SGD(model[2].parameters(), lr=0.1)
        model[0].requires_grad_(False)
        for number in range(16):
            if number == 4:
                model[0].requires_grad_(True)
            model(torch.randn(5, 6, generator=drawn)).square().mean().backward()
            head.step()
            head.zero_grad()
            if number > 4 and number % 4 == 3:
                body.step()
                body.zero_grad()
        results.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.gpu
@pytest.mark.parametrize("loop", LOOPS)
def test_every_loop_trains_with_real_cuda_graphs(loop: str) -> None:
    want, model = _train(_net(), loop, "cuda"), _net().cuda()
    apply_config(model, "train_step", CompileConfig(mode="reduce-overhead"))
    torch.testing.assert_close(_train(model, loop, "cuda"), want, rtol=1e-3, atol=1e-4)
