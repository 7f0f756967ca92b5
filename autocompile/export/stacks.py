"""Common parts of the exports for training stacks: settings, and a warning of what is lost."""

from __future__ import annotations

from dataclasses import dataclass

from autocompile.errors import ExportError
from autocompile.export.choices import Choice, Report, choices, command, header, is_rl
from autocompile.export.text import comment
from autocompile.settings import backends
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP

__all__ = ["Settings", "not_carried", "settings_of"]


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

    def lost(self, stack: str, optimizer: bool) -> str:
        """A comment on what the stack cannot express; empty if there is nothing.

        Args:
            stack: as it is named.
            optimizer: whether the implementation of the optimizer is one of them.
        """
        lost = not_carried(self.model) if not self.model.is_eager else []
        if not self.optimizer.is_eager:
            lost += ["the compiled optimizer step"]
        if self.optimizer.optimizer != "default" and not optimizer:
            lost += [f"optimizer={self.optimizer.optimizer!r}: pass it where you build yours"]
        return comment(f"WARNING: {stack} does not carry {'; '.join(lost)}.") if lost else ""


def not_carried(config: CompileConfig) -> list[str]:
    """``name=value`` for each field of a setting that no lines of plain torch apply."""
    lost = (d for d, _ in config.changed() if d.needs_apply or d.applied == "interpreter")
    return [f"{d.name}={getattr(config, d.name)!r}" for d in lost]


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
    present = [found[name] for name in (TRAIN_STEP, FORWARD) if name in found]
    usable = [choice for choice in present if choice.verdict != "failed"]
    step = found.get(OPTIMIZER_STEP)
    if not usable:
        raise ExportError(
            f"{stack} has no form for this result: it compiles the model's forward pass",
            f"phases with a result: {', '.join(n for n in found if found[n].verdict != 'failed')}",
            hint=command(report, "--to python"),
        )
    choice = usable[0]
    config = choice.config or EAGER
    if config.freezing or not backends.BACKENDS.get(config.backend, backends.Backend()).trains:
        raise ExportError(
            f"{stack} trains, and {config.label()} computes no gradients",
            hint=command(report, "--to python"),
        )
    used = [choice, *([step] if step and step.config else [])]
    own = (step and step.config) or CompileConfig("eager", optimizer=config.optimizer)
    title = header(report, f"{stack} settings")
    return Settings(config, own, title + "".join(_evidence(each, stack) for each in used))


def _evidence(choice: Choice, stack: str) -> str:
    text = comment(f"{choice.phase}: {choice.evidence}")
    if choice.phase == TRAIN_STEP and choice.config is not None:
        text += comment(f"{stack} compiles the forward pass and its backward only.")
    return text
