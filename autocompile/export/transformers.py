"""Hugging Face Transformers: ``TrainingArguments`` and a ``Trainer``, which uses Accelerate.

Sets no logging options.
"""

from __future__ import annotations

from autocompile.export.accelerate import has_name, notes_of
from autocompile.export.choices import Report
from autocompile.export.lines import (
    arguments,
    model_lines,
    optimizer_arguments,
    options,
    process_lines,
)
from autocompile.export.stacks import settings_of
from autocompile.export.text import comment, program, quoted
from autocompile.settings.config import CompileConfig

__all__ = ["export"]

_MIXED = {"bfloat16": "bf16", "float16": "fp16"}
_LAUNCH = "`accelerate launch` sets dynamic to False by default."


def export(report: Report) -> str:
    """Code that builds ``args`` and, if it needs more than that, the ``trainer``.

    Raises:
        ExportError: the Trainer cannot express the result.
    """
    settings = settings_of(report, "Transformers")
    model, step = settings.model, settings.optimizer
    compiled = has_name(model)
    optim, own = _optimizer(report, step)
    notes = settings.lost("The Trainer", optimizer=bool(optim or own))
    notes += comment(_LAUNCH) if compiled and model.dynamic is None else ""
    notes += notes_of(report, model)
    # A backend or a mode turns on compiling, so omit both with False.
    fields = {"torch_compile": str(compiled)}
    if compiled:
        fields["torch_compile_backend"] = quoted(model.backend.lower())
        fields["torch_compile_mode"] = quoted(model.mode)
    fields |= {"optim": quoted(optim)} if optim else {}
    fields |= {_MIXED[model.autocast]: "True"} if model.autocast != "none" else {}
    args = "".join(f"    {k}={v},\n" for k, v in fields.items())
    lines = [*process_lines(model), *model_lines(model)]
    if not (model.is_eager or compiled):
        lines += [f"model.compile({arguments(model)})"]
    after = _of_plugin(model) if compiled else []
    given = "model, args, optimizer_cls_and_kwargs=own" if own else "model, args"
    trainer = [f"own = {own}"] if own else []
    trainer += [f"trainer = Trainer({given})", *after] if own or after else []
    return program(
        settings.evidence + notes,
        ("import torch\n" if lines or own or "torch." in "".join(after) else "")
        + f"from transformers import {'Trainer, ' if trainer else ''}TrainingArguments",
        "\n".join(lines),
        f"args = TrainingArguments(\n{args})\n" + "\n".join(trainer),
    )


def _optimizer(report: Report, config: CompileConfig) -> tuple[str, str]:
    """(value of ``optim``, source of class and arguments); at most one is not empty.

    Without an optimizer in the target, the Trainer's default is used, AdamW.
    """
    if config.optimizer == "default":
        return "", ""
    found = optimizer_arguments(report, config.optimizer)
    is_own = "optimizer" not in (report["target"].get("choices") or {})
    if config.optimizer == "fused" and (is_own or (found and found[0] == "AdamW")):
        return "adamw_torch_fused", ""
    if found is None:
        return "", ""
    return "", f"torch.optim.{found[0]}, dict({found[1]})"


def _of_plugin(config: CompileConfig) -> list[str]:
    """Lines for settings without a field in TrainingArguments."""
    plugin = "trainer.accelerator.state.dynamo_plugin"
    fields = {
        "fullgraph": (config.fullgraph, "True"),
        "dynamic": (config.dynamic is not None, str(config.dynamic)),
        "options": (options(config) != "{}", options(config)),
        "use_regional_compilation": (config.scope == "regional", "True"),
    }
    return [f"{plugin}.{name} = {text}" for name, (given, text) in fields.items() if given]
