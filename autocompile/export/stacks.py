"""Training stacks: one short text for each, and in comments what a stack does otherwise."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from autocompile.errors import ExportError
from autocompile.export.choices import (
    choices,
    command,
    facts_of,
    file_note,
    header,
)
from autocompile.export.lines import (
    CHECKPOINTS,
    PROCESS,
    Choice,
    Facts,
    exclude_each_other,
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


@dataclass(frozen=True)
class _Used:
    """What of a result a stack uses.

    Attributes:
        model: the choice of the phase whose forward pass the stack compiles.
        step: the choice of the optimizer's step; None where that of ``model`` says how it steps.
        aside: choices that change something, which the stack does not use.
    """

    model: Choice
    step: Choice | None
    aside: tuple[Choice, ...]

    @property
    def of_model(self) -> CompileConfig:
        return self.model.config or EAGER

    @property
    def of_step(self) -> CompileConfig:
        if self.step is not None:
            return self.step.config or EAGER
        return self.of_model.of_optimizer_in(self.model.phase)

    @property
    def is_untouched(self) -> bool:
        return self.of_model == self.of_step == EAGER

    @property
    def is_split(self) -> bool:
        """Whether the phases want other threads or precision, which a process has once."""
        return self.step is not None and self.of_model.process != self.of_step.process

    def evidence(self, stack: str) -> str:
        """A comment for each phase: what was measured of it, or that it is not used."""
        text = _evidence(self.model, stack)
        if self.step is not None:
            text += _evidence(self.step, stack)
        for choice in self.aside:
            used = f"{self.model.phase} is what {stack} is given"
            text += comment(f"NOT USED: {choice.phase}: {choice.evidence}: {used}")
        return text


def lightning(report: Report) -> str:
    """PyTorch Lightning: a ``Trainer`` with our callback, which reads the file of settings."""
    return _with_callback(report, "Lightning", _LIGHTNING)


def transformers(report: Report) -> str:
    """Hugging Face Transformers: a ``Trainer`` of ``model`` and ``args`` with our callback."""
    return _with_callback(report, "Transformers", _TRANSFORMERS)


def _with_callback(report: Report, stack: str, text: str) -> str:
    used = _used(report, stack)
    if used.of_model.scope == "step":
        raise ExportError(
            f"the best setting of {used.model.phase} compiles the whole step, which is "
            f"{stack}'s own",
            hint=command(report, "--to python"),
        )
    evidence = header(report, f"{stack} settings") + used.evidence(stack)
    if used.is_untouched:
        return program(evidence + LEAVE_IT)
    return program(evidence, text.format(file=file_note(report)))


def accelerate(report: Report) -> str:
    """Hugging Face Accelerate: a ``TorchDynamoPlugin``, and lines before ``prepare``.

    Where the model and the optimizer's step exclude each other there is a program for each, the
    second in comments.
    """
    used = _used(report, "Accelerate")
    model = used.of_model
    if not model.is_eager and model.backend.upper() not in ACCELERATE_BACKENDS:
        raise ExportError(
            f"Accelerate has no backend {model.backend}",
            hint=command(report, "--to python"),
        )
    facts = facts_of(report)
    top = header(report, "Accelerate settings")
    evidence = used.evidence("Accelerate")
    if used.step is None or not used.is_split:
        comments = top + evidence + _warnings(model, used.of_step, facts)
        return program(comments, *_prepared(model, used.of_step, facts))
    top += evidence + comment(
        exclude_each_other([used.model.phase, used.step.phase], [PROCESS])
    )
    sides = [
        (used.model, model, EAGER),
        (used.step, EAGER, used.of_step),
    ]
    sides.sort(key=lambda side: side[0].config is None)  # first what changes something
    first, second = (_alone(*side, facts) for side in sides)
    instead = ("In place of what is above:", *program(*second).splitlines())
    return program(top, *first, "\n".join(f"# {line}".rstrip() for line in instead))


def _alone(
    choice: Choice, model: CompileConfig, step: CompileConfig, facts: Facts
) -> tuple[str, ...]:
    """A program in which only one of two phases is as it was measured."""
    comments = comment(f"For {choice.phase}:") + _warnings(model, step, facts)
    return comments, *_prepared(model, step, facts)


def _warnings(model: CompileConfig, step: CompileConfig, facts: Facts) -> str:
    """What Accelerate does otherwise than it was measured, as comments."""
    text = ""
    if lost := [*not_carried(model), *_not_carried_of_step(step)]:
        text += comment(f"WARNING: Accelerate does not carry {'; '.join(lost)}.")
    if model.scope == "regional":
        text += comment(_REGIONS)
    if facts.device.startswith("cuda") and not model.is_eager:
        text += comment(_TF32)
    return text


def _prepared(
    model: CompileConfig, step: CompileConfig, facts: Facts
) -> tuple[str, ...]:
    """Code up to ``accelerator.prepare``: imports, what a process has once, and the rest."""
    of_either = dict.fromkeys((*of_process(model), *of_process(step)))
    process = [statement.code for statement in of_either]
    lines = [statement.code for statement in of_weights(model)]
    lines += [s.code for s in of_optimizer(OPTIMIZER_STEP, step, facts)]
    steps = step.optimizer != "default"
    names = "model, optimizer" if steps else "model"
    imports = "import torch\n" if steps or lines or process else ""
    imports += "from accelerate import Accelerator\n"
    imports += "from accelerate.utils import TorchDynamoPlugin"
    made = f"accelerator = Accelerator(dynamo_plugin=plugin{_MIXED[model.autocast]})\n"
    prepared = f"{names} = accelerator.prepare({names})"
    if model.memory_format != "default" and step.optimizer == "fused":
        lines.append(CHECKPOINTS)
    changed = "".join(f"{line}\n" for line in lines)
    return imports, "\n".join(process), _plugin(model) + made + changed + prepared


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


def _used(report: Report, stack: str) -> _Used:
    """What a stack that trains uses of a result: ``train_step``, or the forward pass.

    The setting of ``train_step`` says how its optimizer steps; with that of ``forward`` goes that
    of ``optimizer_step``.
    """
    found = choices(report)
    if library := facts_of(report).library:
        raise ExportError(
            f"{stack} has no form for {library.module}",
            f"it compiles model.forward(), which {library.title} does not call: "
            f"it calls {library.calls}",
            hint=command(report, f"--to {library.name}"),
        )
    usable = {name: choice for name, choice in found.items() if choice.works}
    model = usable.get(TRAIN_STEP) or usable.get(FORWARD)
    if model is None:
        raise ExportError(
            f"{stack} has no form for this result: it compiles the model's forward pass",
            f"phases with a result: {', '.join(usable)}",
            hint=command(report, "--to python"),
        )
    config = model.config or EAGER
    if not config.trains:
        raise ExportError(
            f"{stack} trains, and {config.label()} computes no gradients",
            hint=command(report, "--to python"),
        )
    step = usable.get(OPTIMIZER_STEP) if model.phase == FORWARD else None
    aside = [c for c in usable.values() if c.config and c not in (model, step)]
    return _Used(model, step, tuple(aside))


def _evidence(choice: Choice, stack: str) -> str:
    text = comment(f"{choice.phase}: {choice.evidence}")
    if choice.phase == TRAIN_STEP and choice.config is not None:
        text += comment(f"{stack} compiles the forward pass and its backward only.")
    return text


_CARRIED = (
    "backend", "mode", "options", "fullgraph", "dynamic", "memory_format", "optimizer",
    "threads", "precision", "autocast",
)  # fmt: skip
"""What of a model's setting the text for Accelerate has; whatever else is set is named."""
_CARRIED_OF_STEP = ("backend", "optimizer", "threads", "precision")


def not_carried(config: CompileConfig) -> list[str]:
    """``name=value`` for each field of the model's setting that Accelerate does not carry."""
    is_regional = config.scope == "regional"
    carried = (*_CARRIED, "scope") if is_regional else _CARRIED
    return _lost(config, carried)


def _not_carried_of_step(config: CompileConfig) -> list[str]:
    is_compiled = not config.is_eager or config.optimizer == "compiled"
    compiled = ["the compiled optimizer step"] if is_compiled else []
    # What torch.compile() is given goes with the compiled step.
    beside = [d.name for d, _ in config.changed("argument")] if is_compiled else []
    lost = _lost(config, (*_CARRIED_OF_STEP, *beside))
    return compiled + [f"{field} of the optimizer's step" for field in lost]


def _lost(config: CompileConfig, carried: Collection[str]) -> list[str]:
    changed = config.changed()
    return [f"{d.name}={value!r}" for d, value in changed if d.name not in carried]
