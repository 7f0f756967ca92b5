"""Plain torch: lines to paste, with one comment of evidence for each phase.

They import autocompile only for what torch alone cannot do.
"""

from __future__ import annotations

from collections.abc import Iterable

from autocompile.errors import AutocompileError, ExportError, UsageError
from autocompile.export.choices import (
    Choice,
    Report,
    choices,
    command,
    environment_of,
    file_note,
    gain,
    is_rl,
    states_differ,
)
from autocompile.export.lines import code_line, imports, phase_lines, uses_apply
from autocompile.export.text import one_line, program, quoted
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import LEARNER_UPDATE, OPTIMIZER_STEP, PHASES, phase_of

__all__ = ["code_of", "export", "having_form", "refusal", "to_paste", "use_line"]

_LONGEST = 200  # characters of a line to paste

_APART = (
    "# The phases differ in threads or precision, of which torch has one for the whole process:\n"
    "# set them before each."
)
_IN_RLLIB = ("from autocompile.rllib import tuned", 'config = tuned(config, "tuned.json")')


def export(report: Report) -> str:
    """The lines of all phases, to paste after the model and the optimizer are built."""
    found = having_form(report)
    faster = [choice for choice in found if choice.config is not None]
    needed = dict.fromkeys(line for choice in faster for line in _imports(report, choice))
    blocks = [_APART] if faster and states_differ(found) else []
    blocks += [_evidence(c) + "\n".join(phase_lines(report, c)) for c in found]
    if updates := choices(report).get(LEARNER_UPDATE):
        blocks.append(f"{_evidence(updates)}# {one_line(command(report, '--to rllib'))}")
    return program(refusal(report, faster), "\n".join(needed), *blocks)


def code_of(report: Report, choice: Choice) -> str:
    """The exported lines of one phase; empty for no change."""
    return "\n".join([*_imports(report, choice), *phase_lines(report, choice)])


def _imports(report: Report, choice: Choice) -> list[str]:
    if choice.config is None:
        return []
    note = [file_note(report)] if uses_apply(report, choice.config) else []
    return imports(report, choice.config) + note


def _evidence(choice: Choice) -> str:
    text = choice.said
    if choice.config is not None:
        text = f"{choice.phase}: {gain(choice.speedup, choice.batch_size)}"
        text += f", confirmed in {choice.processes} fresh processes" * bool(choice.processes)
    return f"# {one_line(text)}\n"


def having_form(report: Report) -> list[Choice]:
    """The choices of a report, if plain torch code can express them.

    Raises:
        ExportError: it cannot, or there are none.
    """
    every = choices(report)
    updates = every.pop(LEARNER_UPDATE, None)  # RLlib's own: only its Learner does one
    if updates and not every:
        raise ExportError(
            f"{LEARNER_UPDATE} is an update by RLlib's Learner, which has no form in plain torch",
            hint=command(report, "--to rllib"),
        )
    for name, choice in every.items():
        lost = [] if name in PHASES or is_rl(report) else ["a phase that is not known"]
        place = choice.config.environment if choice.config else "default"
        if choice.config and place != "default" and not environment_of(report, choice.config):
            lost += [f"environment={place!r}, which the report does not describe"]
        if lost:
            raise ExportError(
                f"the best setting of {name} has no form in plain torch",
                f"it has {', '.join(lost)}",
                hint=command(report, "--to json"),
            )
    works = [c for c in every.values() if c.verdict != "failed" and c.phase != OPTIMIZER_STEP]
    calling = {c.phase: c.config or EAGER for c in works}
    has_blocks = any(config.scope == "regional" for config in calling.values())
    if has_blocks and len(set(map(_way, calling.values()))) > 1:
        raise ExportError(
            "a model's blocks cannot be compiled for one phase and run differently in another",
            *(f"{phase}: {config.label()}" for phase, config in calling.items()),
            hint=command(report, "--to json"),
        )
    return list(every.values())


def _way(config: CompileConfig) -> str:
    """How the model runs: blocks are compiled in place, for all phases that call it."""
    if config.is_eager:
        return ""
    return repr((config.scope, config.guards, config.compile_kwargs()))


def refusal(report: Report, faster: Iterable[Choice]) -> str:
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
    run_with = f"measured with torch {there['torch']}: run it with {there['python_path']}"
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
        return "; ".join(_IN_RLLIB) + writes
    try:
        having_form(report)
        refused = refusal(report, faster)
    except ExportError as error:
        return f"autocompile export {run} --to json   ({error.what})"
    if not faster:
        worked = [name for name, c in found.items() if c.verdict != "failed"]
        it = "it" if len(worked) == len(found) else " and ".join(worked)
        return f"leave {it} uncompiled: nothing is faster than eager by more than the noise"
    configs = [choice.config for choice in faster if choice.config]
    lines = [line for config in configs for line in imports(report, config)]
    lines += [line for choice in faster for line in phase_lines(report, choice)]
    one = "; ".join(dict.fromkeys(lines))
    is_one = not any(line.startswith(("for ", " ")) or "#" in line for line in lines)
    if refused or not is_one or len(one) > _LONGEST or states_differ(found.values()):
        return f"autocompile export {run} --to python"
    return one + writes * any(uses_apply(report, config) for config in configs)


def to_paste(report: Report, in_a_line: bool = False) -> dict[str, str]:
    """The code of each phase whose setting changes something, where there is any.

    ``in_a_line``: for a table: what plain torch has no words for stands in a comment. Otherwise
    whole lines with their imports.
    """
    try:
        found = choices(report)
    except AutocompileError:  # there is no result, or a setting is of a newer version
        return {}
    form = code_line if in_a_line else _lines
    codes = {name: form(report, choice) for name, choice in found.items() if choice.config}
    return {name: code for name, code in codes.items() if code}


def _lines(report: Report, choice: Choice) -> str:
    if is_rl(report) and phase_of(choice.phase).in_rllib:
        return "\n".join((file_note(report), *_IN_RLLIB))
    try:
        having_form(report)
    except ExportError:
        return ""
    return code_of(report, choice)
