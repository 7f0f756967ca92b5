"""Stacks that train a model: their settings, what they lose, and trainers with our callback."""

from __future__ import annotations

from dataclasses import dataclass

from autocompile.errors import ExportError
from autocompile.export.choices import (
    Choice,
    Report,
    choices,
    command,
    file_note,
    header,
    is_rl,
)
from autocompile.export.text import comment, program
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP

__all__ = ["Settings", "lightning", "not_carried", "settings_of", "transformers"]

_LIGHTNING = """\
# module: the attribute of your LightningModule that was tuned; left out for all of it.
trainer = Trainer(callbacks=[TunedCallback("tuned.json", module="net")])
"""
_TRANSFORMERS = """\
# Leave torch_compile in its TrainingArguments at False: the callback compiles.
trainer = Trainer(model, args, callbacks=[TunedCallback("tuned.json")])
"""


def lightning(report: Report) -> str:
    """PyTorch Lightning: a ``Trainer``."""
    trainer = "from pytorch_lightning import Trainer  # or from lightning.pytorch"
    return _with_callback(report, "Lightning", trainer, _LIGHTNING)


def transformers(report: Report) -> str:
    """Hugging Face Transformers: a ``Trainer`` of ``model`` and ``args``."""
    trainer = "from transformers import Trainer"
    return _with_callback(report, "Transformers", trainer, _TRANSFORMERS)


def _with_callback(report: Report, stack: str, imports: str, trainer: str) -> str:
    """Code of a trainer with our ``TunedCallback``, which reads a file of settings."""
    settings = settings_of(report, stack)
    if settings.model == settings.optimizer == EAGER:
        nothing = comment("Nothing is faster than eager mode: leave it as it is.")
        return program(settings.evidence + nothing)
    return program(
        settings.evidence,
        f"{imports}\n\nfrom autocompile.{stack.lower()} import TunedCallback",
        f"{file_note(report)}\n{trainer}",
    )


@dataclass(frozen=True)
class Settings:
    """The settings for a stack that trains a model.

    Attributes:
        model: the setting of the forward pass; eager if nothing is faster.
        optimizer: the setting of the optimizer step.
        evidence: a comment for the top of the export.
    """

    model: CompileConfig
    optimizer: CompileConfig
    evidence: str


def settings_of(report: Report, stack: str) -> Settings:
    """The settings of the training step or forward pass, and of the optimizer.

    Raises:
        ExportError: an RLModule, no such phase, or a backend without gradients.
    """
    found = choices(report)
    if is_rl(report):
        raise ExportError(
            f"{stack} has no form for an RLModule",
            "it compiles model.forward(), which RLlib does not call: it calls forward_exploration()"
            ", forward_inference() and forward_train()",
            hint=command(report, "--to rllib"),
        )
    usable = {name: choice for name, choice in found.items() if choice.verdict != "failed"}
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
        return Settings(config, step.config, evidence + _evidence(step, stack))
    return Settings(config, CompileConfig("eager", optimizer=config.optimizer), evidence)


def _evidence(choice: Choice, stack: str) -> str:
    text = comment(f"{choice.phase}: {choice.evidence}")
    if choice.phase == TRAIN_STEP and choice.config is not None:
        text += comment(f"{stack} compiles the forward pass and its backward only.")
    return text


def not_carried(config: CompileConfig) -> list[str]:
    """``name=value`` for each field of a setting that no lines of plain torch apply."""
    lost = (d for d, _ in config.changed() if d.needs_apply or d.applied == "interpreter")
    return [f"{d.name}={getattr(config, d.name)!r}" for d in lost]
