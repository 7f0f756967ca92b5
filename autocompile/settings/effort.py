"""The one dial: how long a run takes, from the command to the report."""

from __future__ import annotations

from autocompile.errors import UsageError

__all__ = ["EFFORTS", "budget_of"]

EFFORTS: dict[str, float | None] = {"quick": 90.0, "normal": 300.0, "full": None}
"""Seconds by name; None: to the end of the list of settings."""


def budget_of(effort: str) -> float | None:
    """The budget of an effort, in seconds.

    Raises:
        UsageError: there is no such effort.
    """
    if effort not in EFFORTS:
        raise UsageError(f"effort {effort!r} is none of {', '.join(EFFORTS)}")
    return EFFORTS[effort]
