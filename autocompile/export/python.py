"""Plain torch: lines to paste, with one comment of evidence for each phase.

They use the names ``model``, ``optimizer``, and ``train_step`` or ``step``, and import autocompile
only for what torch alone cannot do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from autocompile.errors import AutocompileError, ExportError, UsageError
from autocompile.export.choices import (
    Choice,
    choices,
    command,
    device_of,
    environment_of,
    file_note,
    is_rl,
)
from autocompile.export.text import literal, one_line, program, quoted
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.dimensions import GUARD_FILTERS, OPTIMIZERS
from autocompile.settings.phases import LEARNER_UPDATE, PHASES, phase_of
from autocompile.store.report import Report

IN_RLLIB = (
    "from autocompile.rllib import tuned",
    'config = tuned(config, "tuned.json")',
)

_LONGEST = 200  # characters of a line to paste
_RATE = 'float(group["lr"])'
_APART = (
    "# The phases differ in threads or precision, of which torch has one for the whole process:\n"
    "# set them before each."
)


def export(report: Report) -> str:
    """The lines of all phases, to paste after the model and the optimizer are built."""
    found = having_form(report)
    faster = [choice for choice in found if choice.config is not None]
    needed = dict.fromkeys(
        line for choice in faster for line in _imports(report, choice)
    )
    blocks = [_APART] if faster and _states_differ(found) else []
    blocks += [_evidence(c) + "\n".join(_lines(report, c)) for c in found]
    if updates := choices(report).get(LEARNER_UPDATE):
        blocks.append(
            f"{_evidence(updates)}# {one_line(command(report, '--to rllib'))}"
        )
    return program(_refusal(report, faster), "\n".join(needed), *blocks)


def code_of(report: Report, choice: Choice) -> str:
    """The exported lines of one phase; empty for no change."""
    return "\n".join([*_imports(report, choice), *_lines(report, choice)])


def _evidence(choice: Choice) -> str:
    text = f"{choice.phase}: {choice.verdict.replace('_', ' ')}: {choice.evidence}"
    if choice.config is not None:
        text = f"{choice.phase}: {choice.gain}"
        text += f", confirmed in {choice.processes} fresh processes" * bool(
            choice.processes
        )
    return f"# {one_line(text)}\n"


def having_form(report: Report) -> list[Choice]:
    """The choices of a report; an ExportError if plain torch code cannot express them."""
    every = choices(report)
    updates = every.pop(LEARNER_UPDATE, None)  # RLlib's own: only its Learner does one
    if updates and not every:
        raise ExportError(
            f"{LEARNER_UPDATE} is an update by RLlib's Learner, which has no form in plain torch",
            hint=command(report, "--to rllib"),
        )
    for name, choice in every.items():
        lost = "" if name in PHASES or is_rl(report) else "a phase that is not known"
        if choice.config and not environment_of(report, choice.config):
            place = choice.config.environment
            lost = f"environment={place!r}, which the report does not describe"
        if lost:
            raise ExportError(
                f"the best setting of {name} has no form in plain torch",
                f"it has {lost}",
                hint=command(report, "--to json"),
            )
    return list(every.values())


def _states_differ(found: Iterable[Choice]) -> bool:
    """Whether the phases with a result differ in threads or precision."""
    configs = [choice.config or EAGER for choice in found if choice.verdict != "failed"]
    return len({str(config.process) for config in configs}) > 1


def _refusal(report: Report, faster: Iterable[Choice]) -> str:
    """An assertion of the torch version if the settings need another interpreter, else empty."""
    configs = {c.phase: c.config for c in faster if c.config}
    if len(names := {config.environment for config in configs.values()}) > 1:
        raise ExportError(
            "the best settings of the phases need different interpreters, and a program has one",
            *(f"{phase}: {config.environment}" for phase, config in configs.items()),
            hint=command(report, "--to json"),
        )
    if names <= {"default"}:
        return ""
    there = environment_of(report, next(iter(configs.values())))
    run_with = (
        f"measured with torch {there['torch']}: run it with {there['python_path']}"
    )
    test = f"torch.__version__ == {quoted(str(there['torch']))}"
    return f"assert {test}, {quoted(one_line(run_with))}"


def use_line(report: Report, run: str = "last") -> str:
    """The lines of ``--to python`` as one line, or the export command if they do not fit.

    For a result without changes, a sentence that says so. ``run``: its name for commands.
    """
    try:
        found = choices(report)
    except ExportError:
        return "nothing to use: no setting worked"
    except UsageError as error:
        return f"pip install --upgrade torch-autocompile   ({error.what})"
    faster = [choice for choice in found.values() if choice.config is not None]
    writes = f"     after    autocompile export {run} -o tuned.json"
    if is_rl(report) and any(phase_of(choice.phase).in_rllib for choice in faster):
        return "; ".join(IN_RLLIB) + writes
    try:
        having_form(report)
        refused = _refusal(report, faster)
    except ExportError as error:
        return f"autocompile export {run} --to json   ({error.what})"
    if not faster:
        worked = [name for name, c in found.items() if c.verdict != "failed"]
        it = "it" if len(worked) == len(found) else " and ".join(worked)
        return f"leave {it} uncompiled: nothing is faster than eager by more than the noise"
    lines = [
        line for choice in faster for line in _imports(report, choice, with_note=False)
    ]
    lines += [line for choice in faster for line in _lines(report, choice)]
    one = "; ".join(dict.fromkeys(lines))
    is_one = not any(line.startswith(("for ", " ")) or "#" in line for line in lines)
    if refused or not is_one or len(one) > _LONGEST or _states_differ(found.values()):
        return f"autocompile export {run} --to python"
    return one + writes * any(c.config and uses_apply(report, c.config) for c in faster)


def to_paste(report: Report) -> dict[str, str]:
    """The code of each phase whose setting changes something, in one line for a table."""
    try:
        found = choices(report)
    except AutocompileError:  # there is no result, or a setting is of a newer version
        return {}
    lines = {
        name: code_line(report, choice)
        for name, choice in found.items()
        if choice.config
    }
    return {name: line for name, line in lines.items() if line}


def code_line(report: Report, choice: Choice) -> str:
    """A choice as one line, with what plain torch has no words for in a comment; or empty."""
    config = choice.config or EAGER
    lines = written(config)
    if config.optimizer != "default":
        flags = _shown(_flags(config.optimizer)) or f"lr={_tensor(report, _RATE)}"
        if config.optimizer != "compiled":
            lines.append(_made_optimizer(report, config) or f"optimizer(..., {flags})")
    if not config.is_eager:
        lines.append(_compiled(report, config, _names(choice)[0]))
    more = [
        f"environment {value}" if d.name == "environment" else d.label(value)
        for d, value in config.changed()
        if d.needs_apply
        or value in ("regional", "compiled")
        or d.name in ("autocast", "environment")
    ]
    return "; ".join(lines) + (f"  # {', '.join(more)}" if more and lines else "")


def uses_apply(report: Report, config: CompileConfig) -> bool:
    """Whether plain torch has no such line, as for frozen weights, blocks and an RLModule."""
    words = ("regional", "compiled")
    if config.recompile_limit and not _isolates(report, config):
        return True  # an older torch.compile() may not take the limit
    return is_rl(report) or any(
        d.needs_apply or v in words for d, v in config.changed()
    )


def _isolates(report: Report, config: CompileConfig) -> bool:
    """Whether its limit is of its own compile, which ``torch.compile`` of 2.13 knows."""
    version = re.findall(r"\d+", str(environment_of(report, config).get("torch")))[:2]
    return config.isolates_recompiles and tuple(map(int, version)) >= (2, 13)


def _imports(report: Report, choice: Choice, with_note: bool = True) -> list[str]:
    """Imports for the lines of a choice, besides torch."""
    if choice.config is None:
        return []
    if uses_apply(report, choice.config):
        return ["import autocompile", *([file_note(report)] if with_note else ())]
    known = choice.config.entry
    lines = ["import os"] if known.variables else []
    lines += [
        f"os.environ.setdefault({quoted(n)}, {quoted(v)})" for n, v in known.variables
    ]
    if package := known.registered_by:
        lines += [f"import {package}  # noqa: F401  (registers the backend)"]
    return lines


def _lines(report: Report, choice: Choice) -> list[str]:
    """Code that applies the choice of a phase; empty for no change."""
    config = choice.config
    if config is None:
        return []
    if uses_apply(report, config):
        return [_apply_line(choice)]
    # A step of the user's own may hold the optimizer already, so that is not made anew.
    has_one = phase_of(choice.phase).is_own and config.scope == "step"
    lines = written(config) + optimizer_lines(report, config, is_made=has_one)
    compiled, called = _names(choice)
    if not config.is_eager:
        lines += [f"{called} = {_compiled(report, config, compiled)}"]
        compiled = called
    if config.autocast != "none":
        kind = quoted(device_of(report).split(":")[0])
        lower = f"torch.autocast({kind}, dtype=torch.{config.autocast})"
        if called == "model":
            lines += [f"model.forward = {lower}(model.forward)"]
        else:
            lines += [f"{called} = {lower}({compiled})"]
    return lines


def _apply_line(choice: Choice) -> str:
    phase = phase_of(choice.phase)
    given = f'"tuned.json", {quoted(choice.phase)}'
    if choice.batch_size is not None:
        given += f", batch_size={literal(choice.batch_size)}"
    if phase.steps:
        given += ", optimizer=optimizer"
    if choice.config is not None and choice.config.scope == "step":
        return f"{phase.whole} = autocompile.apply({phase.whole}, {given})"
    return f"autocompile.apply(model, {given})"


def _names(choice: Choice) -> tuple[str, str]:
    """What the setting of a phase compiles, in plain torch, and what is called from then on."""
    phase = phase_of(choice.phase)
    if choice.config is not None and choice.config.scope == "step":
        return phase.whole, phase.whole
    return phase.compiles or "model", phase.called


def written(config: CompileConfig, *places: str) -> list[str]:
    """What is set for the process, then done to the model before it is compiled."""
    found = [
        each
        for place in places or ("process", "model")
        for each in config.changed(place)
    ]
    return [d.line(value) for d, value in found if d.line]


def _compiled(report: Report, config: CompileConfig, function: str) -> str:
    given = {name: literal(value) for name, value in config.compile_kwargs().items()}
    if config.backend == "inductor":
        del given["backend"]
    if _isolates(report, config):
        given["isolate_recompiles"] = "True"
    if config.guards != "all":
        given["options"] = options(config)
    return f"torch.compile({', '.join((function, *(f'{k}={v}' for k, v in given.items())))})"


def options(config: CompileConfig) -> str:
    """The dictionary of options as source, including the guard filter."""
    entries = [f"{quoted(name)}: {literal(value)}" for name, value in config.options]
    if config.guards != "all":
        entries += [f'"guard_filter_fn": torch.compiler.{GUARD_FILTERS[config.guards]}']
    return f"{{{', '.join(entries)}}}"


def optimizer_lines(
    report: Report, config: CompileConfig, is_made: bool = False
) -> list[str]:
    """Code that builds the user's optimizer with another implementation, or changes it.

    Empty for the default implementation. A change requires that the optimizer has not stepped.
    """
    if config.optimizer == "default":
        return []
    if not is_made and (made := _made_optimizer(report, config)):
        return [f"optimizer = {made}"]
    change = f'group["lr"] = {_tensor(report, _RATE)}'
    if flags := OPTIMIZERS[config.optimizer]:
        change = f"group.update({_shown(dict(sorted(flags.items())))})"
    return ["for group in optimizer.param_groups:", f"    {change}"]


def _made_optimizer(report: Report, config: CompileConfig) -> str:
    """Code such as ``torch.optim.Adam(model.parameters(), lr=0.01, fused=True)``, by the setting.

    Empty if the target has no optimizer, or its arguments are unknown, as with several parameter
    groups.
    """
    target = report.target
    if "optimizer" not in (target.choices or {}):
        return ""  # the measured optimizer is the default one, the user's may differ
    made = target.optimizer or {}
    name, given = str(made.get("class") or ""), dict(made.get("arguments") or {})
    if not all(
        re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII) for word in (name, *given)
    ):
        return ""
    given = {k: v for k, v in given.items() if k not in OPTIMIZERS[config.optimizer]}
    shown = _shown({**given, **_flags(config.optimizer)})
    if config.optimizer == "tensor_lr":
        lr = f"lr={_tensor(report, literal(given.pop('lr', made.get('lr'))))}"
        shown = ", ".join(filter(None, (lr, _shown(given))))
    return (
        f"torch.optim.{name}({', '.join(filter(None, ('model.parameters()', shown)))})"
    )


def _flags(implementation: str) -> dict[str, bool]:
    """Of a constructor, which may not know what is turned off beside them."""
    flags = OPTIMIZERS[implementation]
    return {name: on for name, on in flags.items() if on or name == next(iter(flags))}


def _tensor(report: Report, number: str) -> str:
    """A learning rate as it was measured: on the device of the weights."""
    device = device_of(report)
    where = "" if device == "cpu" else f", device={quoted(device)}"
    return f"torch.tensor({number}{where})"


def _shown(given: Mapping[str, Any]) -> str:
    """Keyword arguments, with lists as tuples: JSON turned tuples into lists."""
    return ", ".join(f"{name}={_value(value)}" for name, value in given.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return literal(value)
