"""The one line to paste for a result."""

from __future__ import annotations

from autocompile.errors import ExportError
from autocompile.export import rllib
from autocompile.export.common import Report, choices, is_rl, literal

__all__ = ["use_line"]

# What stands before and inside torch.compile(...) for a phase of a plain module.
_CALLS = {
    "forward": ("model", "model"),
    "train_step": ("step", "train_step"),
    "optimizer_step": ("step", "optimizer.step"),
}


def use_line(report: Report) -> str:
    """The line to paste; for a result that compiles nothing, a sentence that says so."""
    try:
        found = choices(report)
        fields = rllib.framework_kwargs(report)[0] if is_rl(report) else {}
    except ExportError:
        return "nothing to use: no setting worked"
    if any(fields.get(f"torch_compile_{side}") for side in ("worker", "learner")):
        given = ", ".join(f"{k}={literal(v)}" for k, v in fields.items())
        return f'config.framework("torch", {given})'
    faster = {name: c.config for name, c in found.items() if c.config and not fields}
    for name, (result, function) in _CALLS.items():
        if config := faster.get(name):
            given = ", ".join(f"{k}={literal(v)}" for k, v in config.compile_kwargs().items())
            return f"{result} = torch.compile({function}, {given})"
    return "leave it uncompiled: nothing is faster than eager by more than the noise"
