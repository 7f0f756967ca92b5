"""The models that search strategies are compared on, and the settings that are tried for each.

Importing this file imports no torch; of the targets only ``ppo_*`` need ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.settings.config import EAGER, CompileConfig

__all__ = ["MODELS", "Model", "settings"]


@dataclass(frozen=True)
class Model:
    """One model as it is timed.

    Attributes:
        name: of its file in ``targets/``.
        phase: what is timed, as autocompile names it.
        batch_size: None where the phase has no batch.
        layers: what takes most of a call: ``conv``, ``linear``, ``recurrent`` or ``attention``;
            ``optimizer`` or ``training`` where more than a forward pass is timed.
        calls_per_update: how often the phase is called between two changes of the weights; None if
            they stay as they are.
    """

    name: str
    phase: str
    batch_size: int | None
    layers: str
    calls_per_update: int | None = None

    @property
    def target(self) -> str:
        """Its file, relative to the repository's root."""
        return f"studies/search/targets/{self.name}.py"


# RLlib's PPO makes 4000 steps between two updates: 125 calls of two env runners of 16 environments.
_ALL = (
    Model("ppo_cnn", "forward_exploration", 4, "conv", 125),
    Model("ppo_mlp", "forward_exploration", 16, "linear", 125),
    Model("ppo_lstm", "forward_exploration", 16, "recurrent", 125),
    Model("convnet", "forward", 4, "conv"),
    Model("resnet", "forward", 4, "conv"),
    Model("depthwise", "forward", 4, "conv"),
    Model("autoencoder", "forward", 4, "conv"),
    Model("encoder", "forward", 4, "attention"),
    Model("decoder", "forward", 4, "attention"),
    Model("tagger", "forward", 16, "recurrent"),
    Model("mlp", "forward", 32, "linear"),
    Model("adam", "optimizer_step", None, "optimizer"),
    Model("adamw", "optimizer_step", None, "optimizer"),
    Model("sgd", "optimizer_step", None, "optimizer"),
    Model("train_convnet", "train_step", 16, "training"),
    Model("train_encoder", "train_step", 16, "training"),
)

MODELS: Mapping[str, Model] = {model.name: model for model in _ALL}

_HAS_CONVOLUTIONS = {model.name for model in _ALL if model.layers == "conv"} | {
    "train_convnet"
}
_REPEATS_BLOCKS = {"resnet", "depthwise", "encoder", "decoder", "train_encoder"}

# torch.compile takes a mode or options.
_NO_GRAPHS: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs"}
_OVERHEAD: dict[str, Any] = {"mode": "reduce-overhead"}
_AUTOTUNE: dict[str, Any] = {"mode": "max-autotune"}
_WRAPPER: dict[str, Any] = {"options": {"cpp_wrapper": True}}
_NARROW: dict[str, Any] = {"options": {"cpp.simdlen": 256}}
_LAST: dict[str, Any] = {"memory_format": "channels_last"}


def settings(model: Model, device: str) -> list[CompileConfig]:
    """The 15 to 20 settings that are compared for a model on a kind of device, eager first.

    A backend among them may not be installed, as ONNX Runtime for a GPU often is not.

    Args:
        model: of :data:`MODELS`.
        device: ``cpu`` or ``cuda``.
    """
    on_cpu = device == "cpu"
    if model.layers == "optimizer":
        return _optimizer_on_cpu() if on_cpu else _optimizer_on_cuda(model)
    if model.layers == "training":
        return _training_on_cpu(model) if on_cpu else _training_on_cuda(model)
    return _forward_on_cpu(model) if on_cpu else _forward_on_cuda(model)


def _forward_on_cpu(model: Model) -> list[CompileConfig]:
    found = [
        EAGER,
        CompileConfig("eager", threads=1),
        CompileConfig(),
        CompileConfig(**_OVERHEAD),  # on a CPU it leaves out checks of the inputs
        CompileConfig(**_NO_GRAPHS),
        CompileConfig(dynamic=True),
        CompileConfig(threads=1),
        CompileConfig(**_WRAPPER),
        CompileConfig(**_NARROW),
        CompileConfig(freezing=True),
        CompileConfig(freezing=True, **_NO_GRAPHS),
        CompileConfig(freezing=True, **_WRAPPER),
        *_of_runtimes("onnxrt", "openvino_onnx"),
    ]
    if model.name in _HAS_CONVOLUTIONS:
        found.append(CompileConfig("eager", **_LAST))
        found += [
            CompileConfig(freezing=freezing, **_LAST) for freezing in (False, True)
        ]
    return found + _regional(model)


def _forward_on_cuda(model: Model) -> list[CompileConfig]:
    found = [
        EAGER,
        CompileConfig("cudagraphs"),
        CompileConfig(),
        CompileConfig(**_OVERHEAD),
        CompileConfig(**_AUTOTUNE),
        CompileConfig(**_NO_GRAPHS),
        CompileConfig(dynamic=True),
        CompileConfig(**_WRAPPER),
        _with_graphs(coordinate_descent_tuning=True),
        _with_graphs(max_autotune_pointwise=True),
        _with_graphs(combo_kernels=True),
        CompileConfig(freezing=True),
        CompileConfig(freezing=True, **_OVERHEAD),
        *_of_runtimes("onnxrt"),
    ]
    if model.name in _HAS_CONVOLUTIONS:
        found += [CompileConfig("eager", **_LAST), CompileConfig(**_LAST)]
        found += [
            CompileConfig(**_OVERHEAD, **_LAST),
            _with_graphs(layout_optimization=False),
        ]
    return found + _regional(model)


def _optimizer_on_cpu() -> list[CompileConfig]:
    implementations = ("default", "fused", "tensor_lr")
    return [
        *(CompileConfig("eager", optimizer=name) for name in implementations),
        CompileConfig("eager", optimizer="fused", threads=1),
        *(CompileConfig(optimizer=name) for name in implementations),
        *(CompileConfig(optimizer=name, **_WRAPPER) for name in implementations),
        *(CompileConfig(optimizer=name, **_NARROW) for name in implementations),
        CompileConfig(**_OVERHEAD),
        CompileConfig(optimizer="tensor_lr", **_OVERHEAD),
        CompileConfig(**_NO_GRAPHS),
        CompileConfig(threads=1),
    ]


def _optimizer_on_cuda(model: Model) -> list[CompileConfig]:
    # torch's SGD keeps no step count, so that it has nothing to make capturable.
    capturable = () if model.name == "sgd" else ("capturable",)
    implementations = ("default", "for_loop", "fused", *capturable, "tensor_lr")
    in_graphs = ("default", "fused", *capturable, "tensor_lr")
    return [
        *(CompileConfig("eager", optimizer=name) for name in implementations),
        *(CompileConfig(optimizer=name) for name in implementations),
        *(CompileConfig(optimizer=name, **_OVERHEAD) for name in in_graphs),
        CompileConfig(**_AUTOTUNE),
        CompileConfig(**_NO_GRAPHS),
        CompileConfig(**_WRAPPER),
        _with_graphs(coordinate_descent_tuning=True),
    ]


def _training_on_cpu(model: Model) -> list[CompileConfig]:
    implementations = ("default", "fused", "tensor_lr")
    found = [
        *(CompileConfig("eager", optimizer=name) for name in implementations),
        CompileConfig("eager", threads=1),
        *(CompileConfig(optimizer=name) for name in implementations),
        *(CompileConfig(optimizer=name, **_WRAPPER) for name in implementations[:2]),
        *(CompileConfig(optimizer=name, **_NO_GRAPHS) for name in implementations[:2]),
        CompileConfig(**_NARROW),
        CompileConfig(**_OVERHEAD),
        CompileConfig(dynamic=True),
        CompileConfig(threads=1),
    ]
    if model.name in _HAS_CONVOLUTIONS:
        for name in implementations[:2]:
            found.append(CompileConfig("eager", optimizer=name, **_LAST))
            found.append(CompileConfig(optimizer=name, **_LAST))
    return found + _regional(model)


def _training_on_cuda(model: Model) -> list[CompileConfig]:
    implementations = ("default", "for_loop", "fused", "capturable", "tensor_lr")
    found = [
        *(CompileConfig("eager", optimizer=name) for name in implementations),
        *(
            CompileConfig(optimizer=name)
            for name in implementations
            if name != "for_loop"
        ),
        *(CompileConfig(optimizer=name, **_OVERHEAD) for name in ("default", "fused")),
        CompileConfig(optimizer="capturable", **_OVERHEAD),
        CompileConfig(**_AUTOTUNE),
        CompileConfig(**_NO_GRAPHS),
        CompileConfig(**_WRAPPER),
        _with_graphs(coordinate_descent_tuning=True),
    ]
    if model.name in _HAS_CONVOLUTIONS:
        found.append(CompileConfig("eager", optimizer="fused", **_LAST))
        found.append(CompileConfig(optimizer="fused", **_LAST))
        found.append(CompileConfig(optimizer="fused", **_OVERHEAD, **_LAST))
    return found + _regional(model)


def _of_runtimes(*backends: str) -> list[CompileConfig]:
    """Each with live weights and with baked ones."""
    every: tuple[dict[str, Any], ...] = ({}, {"weights": "baked"})
    return [
        CompileConfig(name, options=options) for name in backends for options in every
    ]


def _with_graphs(**options: bool) -> CompileConfig:
    """Options of Inductor together with CUDA graphs, which only modes turn on by themselves."""
    return CompileConfig(options={"triton.cudagraphs": True, **options})


def _regional(model: Model) -> list[CompileConfig]:
    return [CompileConfig(scope="regional")] if model.name in _REPEATS_BLOCKS else []
