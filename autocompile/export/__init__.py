"""Report to what the user's stack reads: text only, nothing is imported or run here.

Each format is one file with one function, ``export(report) -> str``; a report is the mapping that
``report.json`` holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from autocompile.errors import UsageError
from autocompile.export.accelerate import export as _accelerate
from autocompile.export.json import export as _json
from autocompile.export.python import export as _python
from autocompile.export.rllib import export as _rllib
from autocompile.export.transformers import export as _transformers
from autocompile.export.use import use_line

__all__ = ["FORMATS", "export", "use_line"]

_EXPORTERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "python": _python,
    "json": _json,
    "rllib": _rllib,
    "accelerate": _accelerate,
    "transformers": _transformers,
}

FORMATS: tuple[str, ...] = tuple(_EXPORTERS)
"""The names that :func:`export` knows."""


def export(report: Mapping[str, Any], to: str) -> str:
    """The result in the form that a stack reads: a program that runs, or JSON.

    Args:
        report: what ``report.json`` holds.
        to: one of :data:`FORMATS`.

    Raises:
        UsageError: there is no such format.
        ExportError: the result has no form there.
    """
    if to not in _EXPORTERS:
        close = difflib.get_close_matches(to.lower(), FORMATS, n=1, cutoff=0.5)
        raise UsageError(
            f"there is no export format {to!r}",
            f"there are: {', '.join(FORMATS)}",
            hint=f"autocompile export last --to {close[0] if close else 'python'}",
        )
    return _EXPORTERS[to](report)
