"""Why a phase of an unfinished run has no verdict yet."""

from __future__ import annotations

from collections.abc import Sequence

from autocompile.store.record import Outcome, Record

__all__ = ["state_of"]


def state_of(phase: str, records: Sequence[Record], running: bool) -> str:
    """Why it is too early for a verdict on a phase; empty if it is not.

    Only for a run that is at work or was stopped before its end.

    Args:
        phase: its name.
        records: of trials that have ended, of all phases.
        running: a tuner is at work on the run.
    """
    mine = [r for r in records if r.phase == phase]
    ended = [r for r in mine if r.outcome is not Outcome.INTERRUPTED]
    if not mine or (running and not ended):
        return "not started"
    if running and all(r.config.is_baseline for r in ended):
        return "no compiled setting has finished"
    return ""
