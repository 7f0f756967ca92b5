"""Hugging Face Accelerate: a ``TorchDynamoPlugin``, and lines before ``prepare``."""

from __future__ import annotations

from autocompile.export.choices import Report, device_of
from autocompile.export.lines import (
    arguments,
    model_lines,
    optimizer_lines,
    options,
    process_lines,
)
from autocompile.export.stacks import Settings, not_carried, settings_of
from autocompile.export.text import comment, literal, program, quoted
from autocompile.settings.config import CompileConfig

__all__ = ["ACCELERATE_READ", "BACKENDS", "export"]

ACCELERATE_READ = "1.15"
"""The version of accelerate that :data:`BACKENDS` was read from."""

BACKENDS = (
    "NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS",
    "OFI", "FX2TRT", "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE",
    "TVM", "HPU_BACKEND", "NEURON",
)  # fmt: skip
"""The names of ``accelerate.utils.DynamoBackend``."""

_REGIONS = (
    "WARNING: Accelerate's regions are not those that were measured: it compiles only entries of "
    "an nn.ModuleList as blocks, and also everything outside them."
)
_TF32 = "On a CUDA device in fp32 it turns on TF32 for matmuls, which may be part of the gain."
_MIXED = {"none": "", "bfloat16": ', mixed_precision="bf16"', "float16": ', mixed_precision="fp16"'}


def export(report: Report) -> str:
    """Code that creates the Accelerator and prepares ``model`` and ``optimizer``."""
    settings = settings_of(report, "Accelerate")
    model, step = settings.model, settings.optimizer
    lines = [*model_lines(model), *optimizer_lines(report, step)]
    if not model.is_eager and not _has_name(model):
        lines += [f"model = torch.compile(model, {arguments(model)})"]
    steps = step.optimizer != "default"
    names = "model, optimizer" if steps else "model"
    return program(
        settings.evidence + _notes(report, settings),
        ("import torch\n" if steps or lines or process_lines(model) else "")
        + "from accelerate import Accelerator\nfrom accelerate.utils import TorchDynamoPlugin",
        "\n".join(process_lines(model)),
        _plugin(model)
        + f"accelerator = Accelerator(dynamo_plugin=plugin{_MIXED[model.autocast]})\n"
        + "".join(f"{line}\n" for line in lines)
        + f"{names} = accelerator.prepare({names})",
    )


def _has_name(config: CompileConfig) -> bool:
    """Whether Accelerate compiles; else the export does, where the setting is compiled."""
    return not config.is_eager and config.backend.upper() in BACKENDS


def _notes(report: Report, settings: Settings) -> str:
    """Comments on what Accelerate does otherwise than what was measured."""
    model, notes = settings.model, ""
    lost = [] if model.is_eager else not_carried(model)
    lost += [] if settings.optimizer.is_eager else ["the compiled optimizer step"]
    if lost:
        notes += comment(f"WARNING: Accelerate does not carry {'; '.join(lost)}.")
    if model.scope == "regional":
        notes += comment(_REGIONS)
    if device_of(report).startswith("cuda") and _has_name(model):
        notes += comment(_TF32)
    return notes


def _plugin(config: CompileConfig) -> str:
    """Code that creates the plugin. Accelerate reads missing fields from the environment."""
    if not _has_name(config):
        return 'plugin = TorchDynamoPlugin(backend="no")\n'
    fields = {
        "backend": quoted(config.backend.lower()),
        "mode": quoted(config.mode),
        "fullgraph": literal(config.fullgraph),
        "dynamic": literal(config.dynamic),
        "options": options(config),
        "use_regional_compilation": str(config.scope == "regional"),
    }
    unset = {"dynamic": "None", "options": "{}"}
    given = {k: v for k, v in fields.items() if v != unset.get(k)}
    text = "plugin = TorchDynamoPlugin(\n"
    text += "".join(f"    {k}={v},\n" for k, v in given.items()) + ")\n"
    if config.dynamic is None:
        text += "plugin.dynamic = None  # `accelerate launch` would set it to False\n"
    return text
