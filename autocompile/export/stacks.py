"""Common parts of the exports for training stacks: settings, and a warning of what is lost."""

from __future__ import annotations

from dataclasses import dataclass

from autocompile.errors import ExportError
from autocompile.export.choices import Choice, Report, choices, command, header, is_rl
from autocompile.export.text import comment, one_line, program
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import FORWARD, OPTIMIZER_STEP, TRAIN_STEP

__all__ = ["Settings", "not_carried", "settings_of", "with_callback"]


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

    def lost(self, stack: str) -> str:
        """A comment on what a stack cannot express; empty if there is nothing."""
        lost = not_carried(self.model) if not self.model.is_eager else []
        if not self.optimizer.is_eager:
            lost += ["the compiled optimizer step"]
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
    if not config.trains:
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


def with_callback(report: Report, stack: str, imports: str, trainer: str) -> str:
    """Code of a trainer with our ``TunedCallback``, which reads a file of settings.

    Args:
        report: of a run.
        stack: as it is named; the module of the callback has the same name.
        imports: the import of the trainer.
        trainer: the code that makes it.

    Raises:
        ExportError: as :func:`settings_of`.
    """
    settings = settings_of(report, stack)
    if settings.model == settings.optimizer == EAGER:
        nothing = comment("Nothing is faster than eager mode: leave it as it is.")
        return program(settings.evidence + nothing)
    return program(
        settings.evidence,
        f"{imports}\n\nfrom autocompile.{stack.lower()} import TunedCallback",
        f"# The file: {one_line(command(report, '-o tuned.json'))}\n{trainer}",
    )
