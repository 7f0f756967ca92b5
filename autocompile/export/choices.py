"""What an export reads of a report: the choice of each phase, with its evidence.

A report is untrusted, so none of its text becomes code: :mod:`autocompile.export.source` writes it as
literals and comments. Names in code come from this package's tables; of a report, only those of a
class of ``torch.optim`` and its arguments, each an identifier.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from autocompile.errors import ExportError
from autocompile.export.lines import Choice, Facts
from autocompile.export.source import comment, one_line
from autocompile.settings.config import CompileConfig
from autocompile.store import runs
from autocompile.store.report import PhaseResult, Report


def choices(report: Report) -> dict[str, Choice]:
    """The choice of each phase: the report's answer, at the batch size that it is about."""
    found = {
        name: _choice(report, name, phase) for name, phase in report.phases.items()
    }
    if not any(choice.works for choice in found.values()):
        raise ExportError(
            "there is nothing to export: no phase has a result",
            *(
                one_line(f"{choice.phase}: {choice.evidence}")
                for choice in found.values()
            ),
            hint=f"autocompile show {_run(report)}",
        )
    return found


def _choice(report: Report, name: str, phase: PhaseResult) -> Choice:
    answer = phase.answer
    best, size, verdict = answer.best, answer.batch_size, answer.verdict
    if best is None:
        return Choice(name, verdict, None, answer.reason)
    own, also = report.target.own_size(name), ""
    if own not in (None, size):
        also = f"; this configuration's own batch size {own} was not measured"
    if not answer.changes_something:
        return Choice(name, verdict, None, answer.reason + also, doubt=answer.why)
    speedup, processes = best.speedup, best.confirmed_processes
    gain = f"{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]"
    gain += " as fast as eager" + (f" at {answer.size}" if answer.size else "")
    text = f"{gain} (trial {best.number}"
    text += f", confirmed in {processes} fresh processes" if processes else ""
    there = environment_of(report, best.config)
    text += f"); torch {there.get('torch', '(not known)')} on {_machine(report)}"
    if best.config.environment != "default":
        text += f", in the Python environment {best.config.environment}"
    return Choice(name, verdict, best.config, text + also, gain, size, processes)


def environment_of(report: Report, config: CompileConfig) -> Mapping[str, Any]:
    """The report's description of a setting's interpreter; empty if unknown."""
    if config.environment == "default":
        return report.environment
    return report.environments.get(config.environment) or {}


def facts_of(report: Report) -> Facts:
    """What the lines of a report's settings depend on."""
    target = vars(report.target)
    return Facts.of(target, report.environment, report.environments, report.phases)


def header(report: Report, title: str) -> str:
    """The comment at the top of a script: title, target, run and machine."""
    spec = report.target.spec or "an object given in Python"
    found = f"{title}, found by autocompile {report.environment.get('autocompile')} for {spec}."
    whence = f"From {report.run_dir}, measured on {_machine(report)}."
    return comment(found) + comment(whence)


def command(report: Report, form: str) -> str:
    """The command that exports the same run with other options, such as ``--to python``."""
    return f"autocompile export {_run(report)} {form}"


def file_note(report: Report) -> str:
    """A comment on how the file of settings is made."""
    return f"# The file: {one_line(command(report, '-o tuned.json'))}"


def _run(report: Report) -> str:
    return shlex.quote(runs.shown(report.run_dir))


def _machine(report: Report) -> str:
    environment = report.environment
    return f"{environment.get('device_name') or 'this machine'} ({environment.get('device')})"
