"""The networks of this study and the settings that are written by hand for each.

Importing this file imports no torch. Nothing here or in ``reference.py`` comes from autocompile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["MODELS", "Model", "Spec", "settings"]


@dataclass(frozen=True)
class Model:
    """One network and phase.

    Attributes:
        name: of its file in ``targets/``.
        device: ``cuda``.
        phase: ``forward``, ``train_step`` or ``optimizer_step``.
        blocks: where its repeated blocks stand, as attribute names; empty if it has none.
        has_convolutions: whether a memory format matters.
        gpu_gb: more than one process of it holds on the GPU.
        draws: whether it draws random numbers (dropout), so that losses agree roughly only.
    """

    name: str
    device: str
    phase: str
    blocks: tuple[str, ...] = ()
    has_convolutions: bool = False
    gpu_gb: int = 4
    draws: bool = False

    @property
    def target(self) -> str:
        """Its file, relative to this folder."""
        return f"targets/{self.name}.py"


@dataclass(frozen=True)
class Spec:
    """One setting.

    Attributes:
        compiled: what ``torch.compile`` is given: ``""`` (nothing), ``model``, ``blocks``, ``step``
            (the function that does the whole step).
        arguments: of ``torch.compile``.
        optimizer: ``target``, or ``fused``, ``foreach``, ``for_loop``, ``capturable``,
            ``tensor_lr``, ``compiled`` (its step is compiled by itself).
        memory_format: of weights and inputs.
        freezing: Inductor takes the weights as constants.
        threads: of torch on a CPU; 0 for its own choice.
    """

    name: str
    compiled: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "target"
    memory_format: str = ""
    freezing: bool = False
    threads: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_GPU = (
    Model("gpt2_step", "cuda", "train_step", ("gpt.transformer.h",), gpu_gb=9),
    Model("llama_decode", "cuda", "forward", ("blocks",), gpu_gb=3),
    Model(
        "bert_step",
        "cuda",
        "train_step",
        ("bert.bert.encoder.layer",),
        gpu_gb=6,
        draws=True,
    ),
    Model("resnet_step", "cuda", "train_step", has_convolutions=True, gpu_gb=9),
    Model("llama_prefill", "cuda", "forward", ("llama.model.layers",), gpu_gb=3),
    Model(
        "vit_forward",
        "cuda",
        "forward",
        ("vit.vit.layers", "vit.vit.encoder.layer"),
        gpu_gb=2,
    ),
    Model("ppo_cnn", "cuda", "forward", has_convolutions=True, gpu_gb=2),
    Model("ppo_adam", "cuda", "optimizer_step", gpu_gb=2),
    Model("whisper_encoder", "cuda", "forward", ("encoder.layers",), gpu_gb=3),
    Model("convnext_forward", "cuda", "forward", has_convolutions=True, gpu_gb=2),
    Model(
        "vit_step",
        "cuda",
        "train_step",
        ("vit.vit.layers", "vit.vit.encoder.layer"),
        gpu_gb=8,
    ),
    Model("llama_1b_prompt", "cuda", "forward", ("llama.model.layers",), gpu_gb=9),
    Model(
        "gpt2_medium_step",
        "cuda",
        "train_step",
        ("gpt.transformer.h",),
        gpu_gb=20,
        draws=True,
    ),
    Model(
        "vit_large_step",
        "cuda",
        "train_step",
        ("vit.vit.layers", "vit.vit.encoder.layer"),
        gpu_gb=20,
    ),
    Model("recommender_step", "cuda", "train_step", gpu_gb=6),
    Model(
        "t5_step",
        "cuda",
        "train_step",
        ("t5.encoder.block", "t5.decoder.block"),
        gpu_gb=16,
        draws=True,
    ),
    Model("unet_large", "cuda", "forward", has_convolutions=True, gpu_gb=8),
    Model("llama_1b_token", "cuda", "forward", ("blocks",), gpu_gb=9),
    Model("whisper_large_encoder", "cuda", "forward", ("encoder.layers",), gpu_gb=6),
)
MODELS: Mapping[str, Model] = {model.name: model for model in _GPU}

_OVERHEAD = {"mode": "reduce-overhead"}
_AUTOTUNE = {"mode": "max-autotune"}
_DESCENT = {"options": {"coordinate_descent_tuning": True, "triton.cudagraphs": True}}
_LAST = "channels_last"


def settings(model: Model) -> list[Spec]:
    """Those that are compared, the most telling first."""
    if model.phase == "optimizer_step":
        return _of_optimizer()
    if model.phase == "train_step":
        return _of_training(model)
    return _of_forward(model)


def _of_optimizer() -> list[Spec]:
    return [
        Spec("eager"),
        Spec("eager fused", optimizer="fused"),
        Spec("compile", "step"),
        Spec("reduce-overhead capturable", "step", _OVERHEAD, "capturable"),
        Spec("compile capturable", "step", {}, "capturable"),
        Spec("compile tensor_lr", "step", {}, "tensor_lr"),
        Spec("max-autotune capturable", "step", _AUTOTUNE, "capturable"),
        Spec("eager for_loop", optimizer="for_loop"),
        Spec("eager capturable", optimizer="capturable"),
    ]


def _of_training(model: Model) -> list[Spec]:
    is_adam = "resnet" not in model.name  # torch's SGD has nothing to make capturable
    found = [
        Spec("eager"),
        Spec("max-autotune fused", "model", _AUTOTUNE, "fused"),
        Spec("eager fused", optimizer="fused"),
        Spec("compile", "model"),
        Spec("compile fused", "model", {}, "fused"),
        Spec("reduce-overhead fused", "model", _OVERHEAD, "fused"),
        Spec("step", "step"),
        Spec("step fused", "step", {}, "fused"),
        Spec(
            "reduce-overhead capturable",
            "step",
            _OVERHEAD,
            "capturable" if is_adam else "fused",
        ),
        Spec("descent fused", "model", _DESCENT, "fused"),
        Spec("reduce-overhead compiled", "model", _OVERHEAD, "compiled"),
    ]
    if model.blocks:
        found.insert(7, Spec("blocks fused", "blocks", {}, "fused"))
    return found


def _of_forward(model: Model) -> list[Spec]:
    found = [
        Spec("eager"),
        Spec("max-autotune", "model", _AUTOTUNE),
        Spec("compile", "model"),
        Spec("reduce-overhead", "model", _OVERHEAD),
        Spec("descent", "model", _DESCENT),
        Spec("cudagraphs", "model", {"backend": "cudagraphs"}),
        Spec("frozen reduce-overhead", "model", _OVERHEAD, freezing=True),
    ]
    if model.blocks:
        found.append(Spec("blocks", "blocks"))
    if model.has_convolutions:
        found += [
            Spec("eager channels_last", memory_format=_LAST),
            Spec("compile channels_last", "model", memory_format=_LAST),
            Spec(
                "reduce-overhead channels_last", "model", _OVERHEAD, memory_format=_LAST
            ),
        ]
    return found
