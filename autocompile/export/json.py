"""JSON with the settings of each phase and batch size, which ``autocompile.apply`` reads."""

from __future__ import annotations

from autocompile.export.common import Report, choices
from autocompile.settings.tuned import Tuned

__all__ = ["export"]


def export(report: Report) -> str:
    """The content of the file.

    Raises:
        ExportError: no phase has a result.
    """
    choices(report)
    return Tuned.from_report(report).to_json()
