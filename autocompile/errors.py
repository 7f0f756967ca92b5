"""What can go wrong, drawn as a tree, and the exit codes of the command line.

    AutocompileError
    ├── UsageError       the request itself cannot be met (exit code 2)
    │   └── TargetError  the user's file cannot be loaded, built or run in eager mode
    ├── RunError         a run folder is missing, torn, foreign or in use
    ├── ExportError      a result cannot be written in the form that was asked for
    └── NothingWorked    no compiled setting and no eager run worked (exit code 1)

Failures of a trial are not here: they are data (``autocompile.store.record.Outcome``).
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "AutocompileError",
    "ExitCode",
    "ExportError",
    "NothingWorked",
    "RunError",
    "TargetError",
    "UsageError",
]


class ExitCode(IntEnum):
    """Exit codes of the ``autocompile`` command."""

    DONE = 0
    """The command did its work; also when the answer is "keep eager"."""
    GATE = 1
    """A gate such as ``--require-speedup`` failed, or nothing worked, eager included."""
    USAGE = 2
    """The request or the target is wrong."""
    INTERNAL = 3
    """A defect in autocompile."""
    INTERRUPTED = 130
    """Ctrl-C; the report of what was there has been written."""


class AutocompileError(Exception):
    """Base of every error that a user can meet.

    Args:
        what: one sentence: what happened, where, and what was seen.
        details: further lines, shown indented under the sentence.
        hint: what to type next, shown after ``try:``.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, what: str, *details: str, hint: str | None = None) -> None:
        self.what = what
        self.details = details
        self.hint = hint
        super().__init__(self.text())

    def text(self) -> str:
        """The whole paragraph, as it stands behind ``error:`` on a screen."""
        lines = [self.what, *(f"  {line}" for line in self.details)]
        if self.hint:
            lines.append(f"  try: {self.hint}")
        return "\n".join(lines)


class UsageError(AutocompileError):
    """The request cannot be met as it stands."""


class TargetError(UsageError):
    """The target cannot be loaded, built or run in eager mode."""


class RunError(AutocompileError):
    """A run folder is missing, torn, from another target, or in use."""


class ExportError(AutocompileError):
    """The result has no form in the stack that was asked for."""


class NothingWorked(AutocompileError):
    """No setting and no eager run worked."""

    exit_code = ExitCode.GATE
