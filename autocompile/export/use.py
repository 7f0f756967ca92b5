"""The one line to paste for a result."""

from __future__ import annotations

from autocompile.config import CompileConfig
from autocompile.errors import ExportError
from autocompile.export.common import (
    RL_FORWARD_PHASES,
    Report,
    is_rl,
    literal,
    quoted,
    states_differ,
)
from autocompile.export.own_size import own_choices
from autocompile.export.python import demand_one_way
from autocompile.export.rllib import PHASES

__all__ = ["use_line"]

# What stands before and inside torch.compile(...) for a phase of a plain module.
_CALLS = {
    "forward": ("model", "model"),
    "train_step": ("step", "train_step"),
    "optimizer_step": ("step", "optimizer.step"),
}


def _line(config: CompileConfig, result: str, function: str) -> str:
    """Source in one line; empty where the setting takes more, or there is no function to name."""
    plain = {"freezing": False, "scope": "full", "environment": "default"}
    plain |= {"autocast": "none", "guards": "all"}
    if any(getattr(config, name) != value for name, value in plain.items()):
        return ""
    if not (config.is_eager or function):
        return ""
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


def use_line(report: Report, run: str = "last") -> str:
    """The line to paste; for a result that compiles nothing, a sentence that says so.

    Where no line brings what was measured, it is the command that writes a script.

    Args:
        report: what ``report.json`` holds.
        run: as a user would type it.
    """
    try:
        found = own_choices(report)
    except ExportError:
        return "nothing to use: no setting worked"
    faster = {name: c.config for name, c in found.items() if c.config}
    if len({config.environment for config in faster.values()}) > 1:
        return f"autocompile export {run} --to json   (the phases' interpreters differ)"
    script = f"autocompile export {run} --to python"
    if is_rl(report) and any(name in PHASES for name in faster):
        line = 'from autocompile.rllib import tuned; config = tuned(config, "tuned.json")'
        return f"{line}   (autocompile export {run} -o tuned.json writes the file)"
    try:
        demand_one_way(found.values())
    except ExportError:
        return f"autocompile export {run} --to json   (the phases' settings exclude one another)"
    order = [name for name in (*RL_FORWARD_PHASES, *_CALLS) if name in faster]
    # What torch has one of in a process would be that of the other phases too.
    if states_differ(found.values()):
        return f"{script}   (the phases differ in what torch has one of: threads or precision)"
    if len(order) > 1 and not all(faster[name].is_eager for name in order):
        return f"{script}   ({len(order)} phases are faster, each with settings of its own)"
    if order:
        lines = [_line(faster[n], *_CALLS.get(n, ("", ""))) for n in order]
        one = "; ".join(dict.fromkeys(lines))
        return one if all(lines) else f"{script}   (the settings take more than one line)"
    slower = [name for name in found if report["phases"][name]["verdict"] != "failed"]
    it = "it" if len(slower) == len(found) else " and ".join(slower)
    nothing = f"leave {it} uncompiled: nothing is faster than eager by more than the noise"
    elsewhere = [name for name in found if report["phases"][name]["verdict"] == "faster"]
    if not elsewhere:
        return nothing
    size = report["target"]["own_batch_size"][elsewhere[0]]
    return f"{nothing} at this configuration's own batch size {size}"
