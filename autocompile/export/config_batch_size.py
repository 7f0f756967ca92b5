"""Choices at the batch size of the user's RLlib configuration."""

from __future__ import annotations

from dataclasses import replace

from autocompile.export.common import Choice, Report, choices, evidence_of, of_row
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import is_faster

__all__ = ["own_choices"]


def own_choices(report: Report) -> dict[str, Choice]:
    """The choice of each phase at the target's batch size; the report's best if it has none.

    Raises:
        ExportError: no phase has a result.
    """
    return {name: _at_own_batch_size(report, c) for name, c in choices(report).items()}


def _at_own_batch_size(report: Report, choice: Choice) -> Choice:
    phase = report["phases"][choice.phase]
    own = (report["target"].get("own_batch_size") or {}).get(choice.phase)
    if own is None or choice.verdict == "failed" or own == phase["best"].get("batch_size"):
        return choice
    row = next((r for r in phase.get("by_batch_size", ()) if r["batch_size"] == own), None)
    number = row and row["number"]
    trial = next((t for t in phase["trials"] if t["number"] == number), None)
    if row is None or trial is None:
        text = f"{choice.evidence}; this configuration's own batch size {own} was not measured"
        return replace(choice, evidence=text)
    config = CompileConfig.from_dict(trial["config"])
    what = evidence_of(report, row, config)
    other = "eager" if choice.config is None else f"trial {phase['best']['number']}"
    what += f"; the batch size is this configuration's own, over all of them {other} is best"
    if not is_faster(row):
        return Choice(choice.phase, "keep_eager", None, f"not compiled: {what}")
    return of_row(choice.phase, report, row, config, what)
