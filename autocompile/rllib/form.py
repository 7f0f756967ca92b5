"""The export for RLlib: its own loops use the file of settings."""

from __future__ import annotations

from autocompile.errors import ExportError
from autocompile.export.choices import choices, command, facts_of, file_note, header
from autocompile.export.source import LEAVE_IT, comment, program
from autocompile.rllib.described import RLLIB
from autocompile.settings.phases import phase_of
from autocompile.store.report import Report


def export(report: Report) -> str:
    """An AlgorithmConfig whose env runners and learners use the file of settings."""
    found = choices(report)
    works = [choice for choice in found.values() if choice.works]
    used = [c for c in works if phase_of(c.phase).library == RLLIB.name]
    is_ours = facts_of(report).library == RLLIB
    if not (is_ours and used):
        what = f"this result: the target is not {RLLIB.module}"
        if is_ours:
            what = f"the phases {', '.join(found)}"
        raise ExportError(
            f"{RLLIB.title} has no form for {what}", hint=command(report, "--to python")
        )
    top = header(report, f"{RLLIB.title} settings")
    top += "".join(comment(f"{choice.phase}: {choice.evidence}") for choice in used)
    if not any(choice.config for choice in used):
        return program(top + LEAVE_IT)
    imported, call = RLLIB.use
    return program(top, imported, f"{file_note(report)}\n{call}")
