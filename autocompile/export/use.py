"""The one line to paste for a result."""

from __future__ import annotations

from autocompile.errors import ExportError
from autocompile.export.common import Choice, Report, command, is_rl, states_differ
from autocompile.export.config_batch_size import own_choices
from autocompile.export.lines import imports, phase_lines, uses_apply
from autocompile.export.python import code_of, having_form, refusal
from autocompile.settings.phases import phase_of

__all__ = ["to_paste", "use_line"]

_LONGEST = 200


def use_line(report: Report, run: str = "last") -> str:
    """The lines of ``--to python`` as one line, or the export command if they do not fit.

    For a result without changes, a sentence that says so.

    Args:
        report: the content of ``report.json``.
        run: the run's name for commands.
    """
    try:
        found = own_choices(report)
    except ExportError:
        return "nothing to use: no setting worked"
    faster = [choice for choice in found.values() if choice.config is not None]
    writes = f"   (autocompile export {run} -o tuned.json writes the file)"
    if is_rl(report) and any(phase_of(choice.phase).in_rllib for choice in faster):
        return f'from autocompile.rllib import tuned; config = tuned(config, "tuned.json"){writes}'
    try:
        having_form(report)
        refused = refusal(report, faster)
    except ExportError as error:
        return f"autocompile export {run} --to json   ({error.what})"
    if not faster:
        return _nothing(report, [name for name, c in found.items() if c.verdict != "failed"])
    configs = [choice.config for choice in faster if choice.config]
    lines = [line for config in configs for line in imports(report, config)]
    lines += [line for choice in faster for line in phase_lines(report, choice)]
    one = "; ".join(dict.fromkeys(lines))
    is_one = not any(line.startswith(("for ", " ")) or "#" in line for line in lines)
    if refused or not is_one or len(one) > _LONGEST or states_differ(found.values()):
        return f"autocompile export {run} --to python"
    return one + writes * any(uses_apply(report, config) for config in configs)


def _nothing(report: Report, worked: list[str]) -> str:
    it = "it" if len(worked) == len(report["phases"]) else " and ".join(worked)
    nothing = f"leave {it} uncompiled: nothing is faster than eager by more than the noise"
    elsewhere = [name for name in worked if report["phases"][name]["verdict"] == "faster"]
    if not elsewhere:
        return nothing
    size = report["target"]["own_batch_size"][elsewhere[0]]
    return f"{nothing} at this configuration's own batch size {size}"


def to_paste(report: Report) -> dict[str, str]:
    """The lines to paste for each phase whose setting changes something, where there are any."""
    try:
        found = own_choices(report)
    except ExportError:
        return {}
    lines = {name: _lines(report, choice) for name, choice in found.items() if choice.config}
    return {name: text for name, text in lines.items() if text}


def _lines(report: Report, choice: Choice) -> str:
    if is_rl(report) and phase_of(choice.phase).in_rllib:
        writes = f"# The file: {command(report, '-o tuned.json')}"
        use = 'from autocompile.rllib import tuned\nconfig = tuned(config, "tuned.json")'
        return f"{writes}\n{use}"
    try:
        having_form(report)
    except ExportError:
        return ""
    return code_of(report, choice)
