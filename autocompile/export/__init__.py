"""Renders a report as code or JSON for the user's stack, without importing or running anything.

Each exporter is one function from the report to text.
"""

from __future__ import annotations

from collections.abc import Callable

from autocompile.errors import ExportError, UsageError
from autocompile.estimate.decision import SETS
from autocompile.export import python, stacks
from autocompile.export.choices import choices, command
from autocompile.export.python import to_paste, use_line
from autocompile.export.source import comment
from autocompile.rllib import form
from autocompile.settings.tuned import TunedSet
from autocompile.store.report import Report

__all__ = ["FORMATS", "export", "to_paste", "unconfirmed", "use_line"]


def _json(report: Report) -> str:
    """The settings of each phase and batch size, which ``autocompile.apply`` reads."""
    choices(report)  # raises where there is nothing to export
    return TunedSet.from_reports({"": report}).to_json()


_EXPORTERS: dict[str, Callable[[Report], str]] = {
    "python": python.export,
    "json": _json,
    "rllib": form.export,
    "accelerate": stacks.accelerate,
    "transformers": stacks.transformers,
    "lightning": stacks.lightning,
}
FORMATS: tuple[str, ...] = tuple(_EXPORTERS)
"""Names of the formats of :func:`export`."""


def export(report: Report, to: str) -> str:
    """The result in one of :data:`FORMATS`, or an ExportError if that cannot express it."""
    if to not in _EXPORTERS:
        known = ", ".join(FORMATS)
        what = f"unknown export format {to!r} (choose from: {known})"
        raise UsageError(what, hint=command(report, "--to python"))
    text = _EXPORTERS[to](report)
    return text if to == "json" else "".join(map(comment, unconfirmed(report))) + text


def unconfirmed(report: Report) -> list[str]:
    """A sentence for each phase whose setting was not confirmed in fresh processes."""
    try:
        found = choices(report).values()
    except ExportError:
        return []
    return [
        f"NOT CONFIRMED: {choice.phase} was measured in {_processes(choice.processes)} only; "
        f"{SETS[0]} fresh processes confirm a setting"
        for choice in found
        if choice.config is not None and choice.processes < SETS[0]
    ]


def _processes(count: int) -> str:
    return f"{count} fresh process{'es' * (count > 1)}" if count else "the search"
