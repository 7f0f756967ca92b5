"""Renders a report as code or JSON for the user's stack, without importing or running anything.

Each stack is one file with one function, ``export(report) -> str``, where the report is the
content of ``report.json``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from autocompile.errors import ExportError, UsageError
from autocompile.estimate.decision import SETS
from autocompile.export.accelerate import export as _accelerate
from autocompile.export.choices import choices, command
from autocompile.export.lightning import export as _lightning
from autocompile.export.python import export as _python
from autocompile.export.python import to_paste, use_line
from autocompile.export.rllib import export as _rllib
from autocompile.export.script import export as _script
from autocompile.export.text import comment
from autocompile.export.transformers import export as _transformers
from autocompile.settings.tuned import Tuned

__all__ = ["FORMATS", "export", "to_paste", "unconfirmed", "use_line"]


def _json(report: Mapping[str, Any]) -> str:
    """The settings of each phase and batch size, which ``autocompile.apply`` reads."""
    choices(report)  # raises where there is nothing to export
    return Tuned.from_report(report).to_json()


_EXPORTERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "python": _python,
    "script": _script,
    "json": _json,
    "rllib": _rllib,
    "accelerate": _accelerate,
    "transformers": _transformers,
    "lightning": _lightning,
}

FORMATS: tuple[str, ...] = tuple(_EXPORTERS)
"""Names of the formats of :func:`export`."""


def export(report: Mapping[str, Any], to: str) -> str:
    """The result in one of the formats; code begins with a comment on unconfirmed settings.

    Args:
        report: the content of ``report.json``.
        to: one of :data:`FORMATS`.

    Raises:
        UsageError: unknown format.
        ExportError: the format cannot express the result.
    """
    if to not in _EXPORTERS:
        close = difflib.get_close_matches(to.lower(), FORMATS, n=1, cutoff=0.5)
        raise UsageError(
            f"unknown export format {to!r}",
            f"choose from: {', '.join(FORMATS)}",
            hint=command(report, f"--to {close[0] if close else 'python'}"),
        )
    text = _EXPORTERS[to](report)
    return text if to == "json" else "".join(map(comment, unconfirmed(report))) + text


def unconfirmed(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each phase whose setting was not confirmed in fresh processes."""
    try:
        found = choices(report).values()
    except ExportError:
        return []
    return [
        f"NOT CONFIRMED: {choice.phase} was measured in {_processes(choice.processes)}; "
        f"{SETS[0]} fresh processes confirm a setting"
        for choice in found
        if choice.config is not None and choice.processes < SETS[0]
    ]


def _processes(count: int) -> str:
    if not count:
        return "the search only"
    return f"{count} fresh process{'es' * (count > 1)} only"
