"""The networks of this study and the settings that are written by hand for each.

Importing this file imports no torch. Nothing here or in ``reference.py`` comes from autocompile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TARGETS = Path(__file__).resolve().parent / "targets"


@dataclass(frozen=True)
class Model:
    """One network and phase.

    Attributes:
        phase: ``forward``, ``train_step`` or ``optimizer_step``.
        blocks: where its repeated blocks stand; empty if it has none.
        gpu_gb: more than one process of it holds on the GPU.
        has_convolutions: whether a memory format matters.
        file: in ``targets/``, if it is not called after the network.
        size: for STUDY_SIZE in the environment, which the file reads.
    """

    name: str
    phase: str
    blocks: str = ""
    gpu_gb: int = 4
    has_convolutions: bool = False
    file: str = ""
    size: str = ""

    @property
    def path(self) -> Path:
        """Its target."""
        return TARGETS / f"{self.file or self.name}.py"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to build it."""
        return {"STUDY_SIZE": self.size}


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
    """

    name: str
    compiled: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "target"
    memory_format: str = ""
    freezing: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_BERT, _GPT2 = "bert.bert.encoder.layer", "gpt.transformer.h"
_LLAMA, _VIT, _WHISPER = "llama.model.layers", "vit.vit.layers", "encoder.layers"
_ALL = (
    Model("gpt2_step", "train_step", _GPT2, 9),
    Model("bert_step", "train_step", _BERT, 6),
    Model("resnet_step", "train_step", "", 9, has_convolutions=True),
    Model("vit_step", "train_step", _VIT, 8),
    Model("llama_prefill", "forward", _LLAMA, 3),
    Model("llama_decode", "forward", "blocks", 3),
    Model("vit_forward", "forward", _VIT, 2),
    Model("convnext_forward", "forward", "", 2, has_convolutions=True),
    Model("whisper_encoder", "forward", _WHISPER, 3),
    Model("ppo_cnn", "forward", "", 2, has_convolutions=True),
    Model("ppo_adam", "optimizer_step", "", 2),
    # The large ones
    Model("gpt2_medium_step", "train_step", _GPT2, 20, file="gpt2_step", size="medium"),
    Model("recommender_step", "train_step", "", 6),
    Model("t5_step", "train_step", "", 16),
    Model("vit_large_step", "train_step", _VIT, 20, file="vit_step", size="large"),
    Model(
        "whisper_large", "forward", _WHISPER, 6, file="whisper_encoder", size="large"
    ),
    Model("unet_large", "forward", "", 8, has_convolutions=True),
    Model("llama_1b_prompt", "forward", _LLAMA, 9, file="llama_prefill", size="1b"),
    Model("llama_1b_token", "forward", "blocks", 9, file="llama_decode", size="1b"),
)
MODELS: Mapping[str, Model] = {model.name: model for model in _ALL}

_OVERHEAD = {"mode": "reduce-overhead"}
_AUTOTUNE = {"mode": "max-autotune"}
_DESCENT = {"options": {"coordinate_descent_tuning": True, "triton.cudagraphs": True}}
_LAST = {"memory_format": "channels_last"}


def settings(model: Model) -> list[Spec]:
    """Those that are compared."""
    if model.phase == "optimizer_step":
        return _of_optimizer()
    if model.phase == "train_step":
        return _of_training(model)
    return _of_forward(model)


def _of_optimizer() -> list[Spec]:
    return [
        Spec("eager"),
        Spec("eager fused", optimizer="fused"),
        Spec("eager for_loop", optimizer="for_loop"),
        Spec("eager capturable", optimizer="capturable"),
        Spec("compile", "step"),
        Spec("compile tensor_lr", "step", {}, "tensor_lr"),
        Spec("compile capturable", "step", {}, "capturable"),
        Spec("reduce-overhead capturable", "step", _OVERHEAD, "capturable"),
        Spec("max-autotune capturable", "step", _AUTOTUNE, "capturable"),
    ]


def _of_training(model: Model) -> list[Spec]:
    # torch's SGD has nothing to make capturable
    capturable = "fused" if model.name == "resnet_step" else "capturable"
    found = [
        Spec("eager"),
        Spec("eager fused", optimizer="fused"),
        Spec("compile", "model"),
        Spec("compile fused", "model", {}, "fused"),
        Spec("reduce-overhead fused", "model", _OVERHEAD, "fused"),
        Spec("reduce-overhead compiled", "model", _OVERHEAD, "compiled"),
        Spec("descent fused", "model", _DESCENT, "fused"),
        Spec("max-autotune fused", "model", _AUTOTUNE, "fused"),
        Spec("step", "step"),
        Spec("step fused", "step", {}, "fused"),
        Spec("reduce-overhead capturable", "step", _OVERHEAD, capturable),
    ]
    if model.blocks:
        found.append(Spec("blocks fused", "blocks", {}, "fused"))
    return found


def _of_forward(model: Model) -> list[Spec]:
    found = [
        Spec("eager"),
        Spec("cudagraphs", "model", {"backend": "cudagraphs"}),
        Spec("compile", "model"),
        Spec("reduce-overhead", "model", _OVERHEAD),
        Spec("frozen reduce-overhead", "model", _OVERHEAD, freezing=True),
        Spec("descent", "model", _DESCENT),
        Spec("max-autotune", "model", _AUTOTUNE),
    ]
    if model.blocks:
        found.append(Spec("blocks", "blocks"))
    if model.has_convolutions:
        found += [
            Spec("eager channels_last", **_LAST),
            Spec("compile channels_last", "model", **_LAST),
            Spec("reduce-overhead channels_last", "model", _OVERHEAD, **_LAST),
        ]
    return found
