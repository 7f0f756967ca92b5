"""Training stacks: one short text for each, and in comments what a stack does otherwise."""

from __future__ import annotations

from autocompile.errors import ExportError
from autocompile.export.choices import (
    choices,
    command,
    facts_of,
    file_note,
    header,
)
from autocompile.export.lines import (
    Choice,
    of_optimizer,
    of_process,
    of_weights,
    options_as_code,
)
from autocompile.export.source import LEAVE_IT, comment, literal, program, quoted
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP
from autocompile.store.report import Report

ACCELERATE_READ = "1.15"
"""The version of accelerate that :data:`ACCELERATE_BACKENDS` was read from."""

ACCELERATE_BACKENDS = (
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
_MIXED = {
    "none": "",
    "bfloat16": ', mixed_precision="bf16"',
    "float16": ', mixed_precision="fp16"',
}
_LIGHTNING = """\
from pytorch_lightning import Trainer  # or from lightning.pytorch

from autocompile.lightning import TunedCallback

{file}
# module: the attribute of your LightningModule that was tuned; left out for all of it.
trainer = Trainer(callbacks=[TunedCallback("tuned.json", module="net")])
"""
_TRANSFORMERS = """\
from transformers import Trainer

from autocompile.transformers import TunedCallback

{file}
# Leave torch_compile in its TrainingArguments at False: the callback compiles.
trainer = Trainer(model, args, callbacks=[TunedCallback("tuned.json")])
"""


def lightning(report: Report) -> str:
    """PyTorch Lightning: a ``Trainer`` with our callback, which reads the file of settings."""
    return _with_callback(report, "Lightning", _LIGHTNING)


def transformers(report: Report) -> str:
    """Hugging Face Transformers: a ``Trainer`` of ``model`` and ``args`` with our callback."""
    return _with_callback(report, "Transformers", _TRANSFORMERS)


def _with_callback(report: Report, stack: str, text: str) -> str:
    model, step, evidence = _settings(report, stack)
    if model == step == EAGER:
        return program(evidence + LEAVE_IT)
    return program(evidence, text.format(file=file_note(report)))


def accelerate(report: Report) -> str:
    """Hugging Face Accelerate: a ``TorchDynamoPlugin``, and lines before ``prepare``."""
    model, step, evidence = _settings(report, "Accelerate")
    if not model.is_eager and model.backend.upper() not in ACCELERATE_BACKENDS:
        raise ExportError(
            f"Accelerate has no backend {model.backend}",
            hint=command(report, "--to python"),
        )
    facts = facts_of(report)
    process = [statement.code for statement in of_process(model)]
    lines = [statement.code for statement in of_weights(model)]
    lines += [s.code for s in of_optimizer(OPTIMIZER_STEP, step, facts)]
    lost = [] if model.is_eager else not_carried(model)
    if not step.is_eager or step.optimizer == "compiled":
        lost.append("the compiled optimizer step")
    if lost:
        evidence += comment(f"WARNING: Accelerate does not carry {'; '.join(lost)}.")
    if model.scope == "regional":
        evidence += comment(_REGIONS)
    if facts.device.startswith("cuda") and not model.is_eager:
        evidence += comment(_TF32)
    steps = step.optimizer != "default"
    names = "model, optimizer" if steps else "model"
    return program(
        evidence,
        ("import torch\n" if steps or lines or process else "")
        + "from accelerate import Accelerator\nfrom accelerate.utils import TorchDynamoPlugin",
        "\n".join(process),
        _plugin(model)
        + f"accelerator = Accelerator(dynamo_plugin=plugin{_MIXED[model.autocast]})\n"
        + "".join(f"{line}\n" for line in lines)
        + f"{names} = accelerator.prepare({names})",
    )


def _plugin(config: CompileConfig) -> str:
    """Code that creates the plugin. Accelerate reads missing fields from the environment."""
    if config.is_eager:
        return 'plugin = TorchDynamoPlugin(backend="no")\n'
    fields = {
        "backend": quoted(config.backend.lower()),
        "mode": quoted(config.mode),
        "fullgraph": literal(config.fullgraph),
        "dynamic": literal(config.dynamic),
        "options": options_as_code(config),
        "use_regional_compilation": str(config.scope == "regional"),
    }
    unset = {"dynamic": "None", "options": "{}"}
    given = {k: v for k, v in fields.items() if v != unset.get(k)}
    text = "plugin = TorchDynamoPlugin(\n"
    text += "".join(f"    {k}={v},\n" for k, v in given.items()) + ")\n"
    if config.dynamic is None:
        text += "plugin.dynamic = None  # `accelerate launch` would set it to False\n"
    return text


def _settings(report: Report, stack: str) -> tuple[CompileConfig, CompileConfig, str]:
    """For a stack that trains: the settings of forward pass and optimizer step, and a comment."""
    found = choices(report)
    if library := facts_of(report).library:
        raise ExportError(
            f"{stack} has no form for {library.module}",
            f"it compiles model.forward(), which {library.title} does not call: "
            f"it calls {library.calls}",
            hint=command(report, f"--to {library.name}"),
        )
    usable = {name: choice for name, choice in found.items() if choice.works}
    choice = usable.get(TRAIN_STEP) or usable.get(FORWARD)
    if choice is None:
        raise ExportError(
            f"{stack} has no form for this result: it compiles the model's forward pass",
            f"phases with a result: {', '.join(usable)}",
            hint=command(report, "--to python"),
        )
    config = choice.config or EAGER
    if not config.trains:
        raise ExportError(
            f"{stack} trains, and {config.label()} computes no gradients",
            hint=command(report, "--to python"),
        )
    evidence = header(report, f"{stack} settings") + _evidence(choice, stack)
    step = found.get(OPTIMIZER_STEP)
    if step and step.config:
        return config, step.config, evidence + _evidence(step, stack)
    return config, CompileConfig("eager", optimizer=config.optimizer), evidence


def _evidence(choice: Choice, stack: str) -> str:
    text = comment(f"{choice.phase}: {choice.evidence}")
    if choice.phase == TRAIN_STEP and choice.config is not None:
        text += comment(f"{stack} compiles the forward pass and its backward only.")
    return text


def not_carried(config: CompileConfig) -> list[str]:
    """``name=value`` for each field of a setting that no lines of plain torch apply."""
    lost = (
        d for d, _ in config.changed() if d.needs_apply or d.applied == "interpreter"
    )
    return [f"{d.name}={getattr(config, d.name)!r}" for d in lost]
