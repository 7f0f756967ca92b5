"""Code lines that apply a setting, the building blocks of the exports.

They use the names ``model``, ``optimizer`` and ``train_step``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autocompile.export.choices import Choice, Report, device_of, is_rl
from autocompile.export.text import literal, quoted
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.dimensions import GUARD_FILTERS, OPTIMIZERS
from autocompile.settings.phases import phase_of

_RATE = 'float(group["lr"])'


def phase_lines(report: Report, choice: Choice) -> list[str]:
    """Code that applies the choice of a phase; empty for no change."""
    config = choice.config
    if config is None:
        return []
    if uses_apply(report, config):
        return [_apply_line(choice)]
    lines = process_lines(config) + model_lines(config) + optimizer_lines(report, config)
    compiled, called = names(choice)
    if not config.is_eager and config.scope == "regional":
        lines += [f"regions_of(model).compile({arguments(config)})"]
    elif not config.is_eager:
        lines += [f"{called} = {_compiled(config, compiled)}"]
        compiled = called
    if config.autocast != "none":
        kind = quoted(device_of(report).split(":")[0])
        lower = f"torch.autocast({kind}, dtype=torch.{config.autocast})"
        if called == "model":
            lines += [f"model.forward = {lower}(model.forward)"]
        else:
            lines += [f"{called} = {lower}({compiled})"]
    return lines


def names(choice: Choice) -> tuple[str, str]:
    """What the setting of a phase compiles, in plain torch, and what is called from then on."""
    phase = phase_of(choice.phase)
    if choice.config is not None and choice.config.scope == "step":
        return phase.whole, phase.whole
    return phase.compiles or "model", phase.called


def code_line(report: Report, choice: Choice) -> str:
    """A choice as one line, with what plain torch has no words for in a comment; or empty."""
    config = choice.config or EAGER
    lines = [*process_lines(config), *model_lines(config)]
    if config.optimizer != "default":
        flags = _shown(_arguments(config.optimizer)) or f"lr={_tensor(report, _RATE)}"
        if config.optimizer != "compiled":
            lines.append(made_optimizer(report, config) or f"optimizer(..., {flags})")
    if not config.is_eager:
        lines.append(_compiled(config, names(choice)[0]))
    more = [
        f"environment {value}" if d.name == "environment" else d.label(value)
        for d, value in config.changed()
        if d.needs_apply
        or value in ("regional", "compiled")
        or d.name in ("autocast", "environment")
    ]
    return "; ".join(lines) + (f"  # {', '.join(more)}" if more and lines else "")


def _compiled(config: CompileConfig, function: str) -> str:
    return f"torch.compile({', '.join(filter(None, (function, arguments(config))))})"


def uses_apply(report: Report, config: CompileConfig) -> bool:
    """Whether plain torch has no such line: an RLModule is changed in place, weights are frozen."""
    every = config.changed()
    return is_rl(report) or any(d.needs_apply or value == "compiled" for d, value in every)


def _apply_line(choice: Choice) -> str:
    given = f'"tuned.json", {quoted(choice.phase)}'
    if choice.batch_size is not None:
        given += f", batch_size={literal(choice.batch_size)}"
    if phase_of(choice.phase).steps:
        given += ", optimizer=optimizer"
    if choice.config is not None and choice.config.scope == "step":
        whole = phase_of(choice.phase).whole
        return f"{whole} = autocompile.apply({whole}, {given})"
    return f"autocompile.apply(model, {given})"


def imports(report: Report, config: CompileConfig) -> list[str]:
    """Imports for the lines of a setting, besides torch."""
    if uses_apply(report, config):
        return ["import autocompile"]
    known = config.entry
    lines = ["import os"] if known.variables else []
    lines += [f"os.environ.setdefault({quoted(n)}, {quoted(v)})" for n, v in known.variables]
    if package := known.registered_by:
        lines += [f"import {package}  # noqa: F401  (registers the backend)"]
    if config.scope == "regional":
        lines += ["from autocompile.runtime.regions import regions_of"]
    return lines


def process_lines(config: CompileConfig) -> list[str]:
    """What torch has one of for the whole process."""
    return [d.line(value) for d, value in config.changed("process") if d.line]


def model_lines(config: CompileConfig) -> list[str]:
    """What is done to the model before it is compiled."""
    return [d.line(value) for d, value in config.changed("model") if d.line]


def arguments(config: CompileConfig) -> str:
    """Non-default arguments of ``torch.compile`` as source."""
    given = {k: literal(v) for k, v in config.compile_kwargs().items()}
    if config.backend == "inductor":
        del given["backend"]
    if config.guards != "all":
        given["options"] = options(config)
    return ", ".join(f"{name}={text}" for name, text in given.items())


def options(config: CompileConfig) -> str:
    """The dictionary of options as source, including the guard filter."""
    entries = [f"{quoted(name)}: {literal(value)}" for name, value in config.options]
    if config.guards != "all":
        entries += [f'"guard_filter_fn": torch.compiler.{GUARD_FILTERS[config.guards]}']
    return f"{{{', '.join(entries)}}}"


def optimizer_lines(report: Report, config: CompileConfig) -> list[str]:
    """Code that builds the user's optimizer with another implementation, or changes it.

    Empty for the default implementation. A change requires that the optimizer has not stepped.
    """
    if config.optimizer == "default":
        return []
    if made := made_optimizer(report, config):
        return [f"optimizer = {made}"]
    change = f'group["lr"] = {_tensor(report, _RATE)}'
    if flags := OPTIMIZERS[config.optimizer]:
        change = f"group.update({_shown(dict(sorted(flags.items())))})"
    return ["for group in optimizer.param_groups:", f"    {change}"]


def made_optimizer(report: Report, config: CompileConfig) -> str:
    """Code such as ``torch.optim.Adam(model.parameters(), lr=0.01, fused=True)``, by the setting.

    Empty if the target has no optimizer, or its arguments are unknown, as with several parameter
    groups.
    """
    target = report["target"]
    if "optimizer" not in (target.get("choices") or {}):
        return ""  # the measured optimizer is the default one, the user's may differ
    made = target.get("optimizer") or {}
    name, given = str(made.get("class") or ""), dict(made.get("arguments") or {})
    if not all(re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII) for word in (name, *given)):
        return ""
    given = {k: v for k, v in given.items() if k not in OPTIMIZERS[config.optimizer]}
    shown = _shown({**given, **_arguments(config.optimizer)})
    if config.optimizer == "tensor_lr":
        lr = f"lr={_tensor(report, literal(given.pop('lr', made.get('lr'))))}"
        shown = ", ".join(filter(None, (lr, _shown(given))))
    return f"torch.optim.{name}({', '.join(filter(None, ('model.parameters()', shown)))})"


def _arguments(implementation: str) -> dict[str, bool]:
    """Of a constructor, which may not know what is turned off beside them."""
    flags = OPTIMIZERS[implementation]
    return {name: on for name, on in flags.items() if on or name == next(iter(flags))}


def _tensor(report: Report, number: str) -> str:
    """A learning rate as it was measured: on the device of the weights."""
    device = device_of(report)
    where = "" if device == "cpu" else f", device={quoted(device)}"
    return f"torch.tensor({number}{where})"


def _shown(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in given.items())


def _value(value: Any) -> str:
    """:func:`literal`, with lists as tuples: JSON turned tuples into lists."""
    if isinstance(value, list):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return literal(value)
