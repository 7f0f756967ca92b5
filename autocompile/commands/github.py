"""``autocompile verify --github``: the checks as annotations of a run of GitHub Actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autocompile.commands.verify import Check, faults
from autocompile.report.text import plain

__all__ = ["workflow_commands"]


def workflow_commands(checks: Sequence[Check], required: Mapping[str, float]) -> list[str]:
    """Workflow commands: an error for each reason to fail, a warning for each open check.

    Args:
        checks: of :func:`autocompile.commands.verify.check`.
        required: as for :func:`autocompile.commands.verify.unmet`.
    """
    found = []
    for one in checks:
        sentences = faults(one, required)
        found += [_command("error", one, sentence) for sentence in sentences]
        if one.is_open and not sentences:
            found.append(_command("warning", one, f"open: {one.message}"))
    return found


def _command(level: str, one: Check, message: str) -> str:
    title = plain(f"{one.where}: {one.setting}")
    return f"::{level} title={_escaped(title, ':,')}::{_escaped(plain(message))}"


def _escaped(text: str, more: str = "") -> str:
    """Percent-encoded as the runner decodes it; in a property a colon and a comma end the value."""
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{more}" else c for c in text)
