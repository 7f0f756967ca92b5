"""The device of a function, told by what it gets and refers to; tensors of ``meta`` are no CPU's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from autocompile.runtime import apply as applying
from autocompile.runtime.apply import AtFirstCall
from autocompile.runtime.applying import Compiled
from autocompile.runtime.devices import device_of
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Choice, Tuned, TunedSet

CPU, META = torch.device("cpu"), torch.device("meta")


@dataclass
class Batch:
    """What no pytree knows."""

    tokens: torch.Tensor


class Trainer:
    """Its method is the step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def step(self, x: Any) -> Any:
        return self.model(x)


def entry(device: str, config: CompileConfig) -> Tuned:
    choice = Choice(config, None, {"value": 1.0, "low": 1.0, "high": 1.0}, 3)
    return Tuned({"inference_step": (choice,)}, {"device": device}, "model.py")


def closed_over(thing: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        return thing, x

    return step


def on(device: torch.device) -> torch.nn.Linear:
    return torch.nn.Linear(2, 2, device=device)


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.ones(2, device=device),
        lambda device: {"x": [torch.ones(2, device=device)], "n": 3},
        lambda device: Batch(torch.ones(2, device=device)),
        on,
        lambda device: torch.optim.Adam(on(device).parameters()),
        lambda device: closed_over(on(device)),
        lambda device: closed_over(torch.optim.SGD(on(device).parameters(), lr=0.1)),
        lambda device: Trainer(on(device)).step,
        lambda device: functools.partial(closed_over(None), on(device)),
        lambda device: closed_over(closed_over(on(device))),
    ],
)
def test_tensors_are_found_wherever_a_call_finds_them(make: Any) -> None:
    assert device_of(make(CPU)) == CPU
    assert device_of(make(META)) == META
    assert device_of(torch.ones(2), make(META)) == META, "before the CPU's"


def test_without_a_tensor_no_device_is_told() -> None:
    assert device_of(closed_over(3), 4, "five", {"six": None}) is None


def test_a_function_refers_to_what_its_globals_name() -> None:
    names: dict[str, Any] = {"model": on(META), "other": on(CPU)}
    exec("def step(x): return model(x)", names)
    assert device_of(names["step"]) == META


def test_settings_of_a_function_are_chosen_once_by_the_tensors_of_its_first_call() -> (
    None
):
    asked: list[torch.device] = []

    def applied(device: torch.device) -> Callable[[Any], Any]:
        asked.append(device)
        return lambda x: (device, x)

    step = AtFirstCall(closed_over(None), applied)
    assert step.__name__ == "step"
    assert asked == []
    x = torch.ones(2, device=META)
    assert step(x) == (META, x)
    assert step(torch.ones(2))[0] == META
    assert asked == [META]


def test_where_there_is_an_accelerator_a_function_alone_waits_for_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuned = entry("cpu", CompileConfig("eager"))
    step = closed_over(3)
    monkeypatch.setattr(applying, "has_accelerator", lambda: True)
    waits = applying.apply(step, tuned, "inference_step")
    assert isinstance(waits, AtFirstCall)
    at_once = applying.apply(step, tuned, "inference_step", device="cpu")
    assert at_once is step
    monkeypatch.setattr(applying, "has_accelerator", lambda: False)
    assert applying.apply(step, tuned, "inference_step") is step


def test_autocast_of_a_function_is_that_of_its_tensors_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds: list[str] = []
    usual = torch.autocast

    def noted(kind: str, **more: Any) -> Any:
        kinds.append(kind)
        return usual("cpu", **more)

    monkeypatch.setattr(torch, "autocast", noted)
    config = CompileConfig("eager", autocast="bfloat16")
    Compiled(lambda x: x, config)(torch.ones(2, device=META))
    Compiled(lambda x: x, config)(torch.ones(2))
    Compiled(lambda x: x, config, device=torch.device("xpu"))(torch.ones(2))
    assert kinds == ["meta", "cpu", "xpu"]


@pytest.mark.gpu
def test_an_inference_step_on_a_gpu_takes_the_gpus_entry_and_its_autocast() -> None:
    model = torch.nn.Linear(8, 8, device="cuda")
    whole = CompileConfig("eager", scope="step", autocast="bfloat16")
    on_cpu = entry("cpu", CompileConfig("aot_eager", scope="step"))
    tuned = TunedSet((on_cpu, entry("cuda", whole)))
    step = applying.apply(lambda x: model(x), tuned, "inference_step", device="cuda")
    waits = applying.apply(lambda x: model(x), tuned, "inference_step")
    for each in (step, waits):
        assert each(torch.ones(4, 8, device="cuda")).dtype is torch.bfloat16
