"""The exported code of a run that is not over yet, for the run's own check of it."""

from __future__ import annotations

from autocompile.errors import ExportError
from autocompile.export.python import programs_of
from autocompile.protocol.requests import ExportedCode
from autocompile.settings.config import Cell
from autocompile.settings.tuned import Tuned
from autocompile.store.report import Report


def exported_code(report: Report) -> dict[Cell, ExportedCode]:
    """What ``--to python`` gives for each phase that changes something, by phase and batch size.

    A phase gets the lines of the whole export that it runs with, the settings that they may read,
    and the name of what it calls then. All of it is at the batch size that the phase's answer is
    about.
    """
    try:
        every = programs_of(report)
    except ExportError:  # no phase has a result
        return {}
    codes = {}
    for together in every:
        for one in together.phases:
            if one.is_empty:
                continue
            code = "\n".join(statement.code for statement in together.of(one.phase))
            cell = one.phase, report.phases[one.phase].answer.batch_size
            codes[cell] = ExportedCode(code, Tuned.from_report(report), one.called)
    return codes
