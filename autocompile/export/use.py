"""The one line to paste for a result."""

from __future__ import annotations

from autocompile.config import CompileConfig
from autocompile.errors import ExportError
from autocompile.export import rllib
from autocompile.export.common import (
    RL_FORWARD_PHASES,
    Report,
    choices,
    is_rl,
    literal,
    quoted,
)

__all__ = ["use_line"]

# What stands before and inside torch.compile(...) for a phase of a plain module.
_CALLS = {
    "forward": ("model", "model"),
    "train_step": ("step", "train_step"),
    "optimizer_step": ("step", "optimizer.step"),
}


_SCRIPT = "autocompile export last --to python   (the settings take more than one line)"


def _line(config: CompileConfig, result: str, function: str) -> str:
    plain = {"freezing": False, "scope": "full", "environment": "default"}
    plain |= {"autocast": "none", "guards": "all"}
    if any(getattr(config, name) != value for name, value in plain.items()):
        return _SCRIPT
    parts = []
    if config.precision != "default":
        parts.append(f"torch.set_float32_matmul_precision({quoted(config.precision)})")
    if config.threads is not None:
        parts.append(f"torch.set_num_threads({config.threads})")
    if config.memory_format != "default":
        parts.append(f"model.to(memory_format=torch.{config.memory_format})")
    if config.optimizer != "default":
        call = f"set_implementation(optimizer, {quoted(config.optimizer)})"
        parts.append(f"from autocompile.runtime.optimizers import set_implementation; {call}")
    if not config.is_eager:
        given = ", ".join(f"{k}={literal(v)}" for k, v in config.compile_kwargs().items())
        parts.append(f"{result} = torch.compile({function}, {given})")
    return "; ".join(parts)


def use_line(report: Report) -> str:
    """The line to paste; for a result that compiles nothing, a sentence that says so."""
    try:
        found = choices(report)
        fields = rllib.framework_kwargs(report)[0] if is_rl(report) else {}
    except ExportError:
        return "nothing to use: no setting worked"
    sides = ("worker", "learner")
    if any(fields.get(f"torch_compile_{side}") for side in sides):
        given = ", ".join(f"{k}={literal(v)}" for k, v in fields.items())
        return f'config.framework("torch", {given})'
    faster = {name: c.config for name, c in found.items() if c.config}
    if fields:  # what ray has no field for, and needs no compiling
        faster = {name: config for name, config in faster.items() if config.is_eager}
    for name in RL_FORWARD_PHASES:
        if config := faster.get(name):
            return _line(config, "", "")
    for name, (result, function) in _CALLS.items():
        if config := faster.get(name):
            return _line(config, result, function)
    return "leave it uncompiled: nothing is faster than eager by more than the noise"
