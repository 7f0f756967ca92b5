"""What is measured: each model with its batch size and its settings of torch.compile.

Nothing here comes from autocompile. Importing this file does not import torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
Settings = dict[str, dict[str, Any]]

EAGER = "eager"
_NAMED: Settings = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "lite": {"mode": "lite"},
    "dynamic=False": {"dynamic": False},
    "dynamic=True": {"dynamic": True},
    "aot_eager": {"backend": "aot_eager"},
    "cudagraphs": {"backend": "cudagraphs"},
}


def _named(*names: str) -> Settings:
    return {name: _NAMED[name] for name in names}


_NEAR_TIES = _named(
    "default",
    "reduce-overhead",
    "max-autotune-no-cudagraphs",
    "dynamic=False",
    "dynamic=True",
)
_ON_A_CPU = _named(
    "default", "max-autotune-no-cudagraphs", "lite", "dynamic=True", "aot_eager"
)
_ON_A_GPU = _named(
    "default", "reduce-overhead", "max-autotune-no-cudagraphs", "cudagraphs"
)


# glibc keeps what is freed. By default it gives the end of its heap back, and whether PPO's
# tensors lie there is chance: eager took 8 ms or 11.6, compiled likewise, in any combination.
_KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}


@dataclass(frozen=True)
class Model:
    """One model as it is timed.

    Attributes:
        target: its file, below the repository's root.
        phase: what is timed, as autocompile names it.
        batch_size: None where there is no batch.
        settings: for each device, a name and the arguments of ``torch.compile``.
        environment: variables that are set wherever it is timed.
    """

    target: str
    phase: str
    batch_size: int | None
    settings: dict[str, Settings]
    environment: dict[str, str] = field(default_factory=dict)


MODELS = {
    "mlp": Model("studies/truth/mlp.py", "forward", 64, {"cpu": _NEAR_TIES}),
    "cnn": Model(
        "examples/cnn.py", "forward", 4, {"cpu": _ON_A_CPU, "cuda": _ON_A_GPU}
    ),
    "ppo": Model(
        "examples/ppo_breakout.py",
        "forward_exploration",
        4,
        {"cpu": _ON_A_CPU},
        _KEEP_MEMORY,
    ),
    "adam": Model("examples/adam.py", "optimizer_step", None, {"cuda": _ON_A_GPU}),
}


def of_device(device: str) -> list[str]:
    """The models that are measured on a device."""
    return [name for name, model in MODELS.items() if device in model.settings]


@dataclass(frozen=True)
class Side:
    """Something to time: the call, and what to enter around many of them."""

    call: Callable[[], Any]
    context: Callable[[], contextlib.AbstractContextManager[Any]]


def make(name: str, device: str, compile_kwargs: dict[str, Any] | None) -> Side:
    """Build a model anew, with the same weights each time; None leaves it uncompiled."""
    import torch

    model = MODELS[name]
    path = ROOT / model.target
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def compiled(function: Any) -> Any:
        return (
            function
            if compile_kwargs is None
            else torch.compile(function, **compile_kwargs)
        )

    torch.manual_seed(0)
    if model.phase == "forward":
        net = module.get_model().eval().to(device)
        inputs = [x.to(device) for x in module.get_inputs(model.batch_size)]
        forward = compiled(net)
        return Side(lambda: forward(*inputs), torch.no_grad)
    if model.phase == "forward_exploration":
        net = module.config.get_rl_module_spec(inference_only=True).build().to(device)
        net._forward_exploration = compiled(net._forward_exploration)
        shape = (model.batch_size, *module.config.observation_space.shape)
        batch = {"obs": torch.empty(shape, device=device).uniform_(-1, 1)}
        return Side(lambda: net.forward_exploration(batch), torch.no_grad)

    net = module.get_model().to(device)
    for parameter in net.parameters():
        parameter.grad = 1e-2 * torch.randn_like(parameter)
    optimizer = module.get_optimizer(net)

    def step() -> None:
        optimizer.step()

    return Side(compiled(step), contextlib.nullcontext)
