"""The exceptions, and the exit codes of the command line.

Failed trials raise nothing; they are data (``autocompile.store.record.Outcome``).
"""

from __future__ import annotations

import re
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the ``autocompile`` command."""

    DONE = 0  # also if eager is best
    # A gate such as ``--require-speedup`` failed, or there is no answer: nothing worked, eager
    # included, or the time was over before anything compiled had ended.
    GATE = 1
    USAGE = 2  # the request or the target is invalid
    INTERNAL = 3  # a defect in autocompile
    INTERRUPTED = 130  # Ctrl-C; the report of the finished trials has been written


class AutocompileError(Exception):
    """Base class of all errors shown to users.

    Args:
        what: one sentence: what happened, where, and the value seen.
        details: further lines, shown indented below.
        hint: what to type next, shown after ``try:``.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, what: str, *details: str, hint: str | None = None) -> None:
        self.what, self.details, self.hint = what, details, hint
        super().__init__(self.text())

    def text(self) -> str:
        """The whole message, as shown after ``error:``."""
        lines = [self.what, *(f"  {line}" for line in self.details)]
        if self.hint:
            lines.append(f"  try: {self.hint}")
        return "\n".join(lines)


class UsageError(AutocompileError):
    """The request is invalid."""


class TargetError(UsageError):
    """The target cannot be loaded, built or run in eager mode."""


class RunError(AutocompileError):
    """A run folder is missing, damaged, of another target, or in use."""


class AnotherMachine(RunError):
    """What is to go on was made on another machine, or with another torch."""


class ExportError(AutocompileError):
    """The requested format cannot express the result."""


class NothingWorked(AutocompileError):
    """No setting and no eager run worked."""

    exit_code = ExitCode.GATE


NEWER = "install a newer autocompile: the version that wrote it, or a later one"
"""What to do about a file of a version that this one does not know."""


# A graph break whose first line tells nothing: torch 2.15 says so of an LSTM.
_DELAYED = re.compile(
    r"\s*Unsupported function call \(delayed\)\n.* Reason: (?!None\b)(.+)"
)


def first_line(text: object) -> str:
    """The first line that is not blank, or torch's reason if it is below; at most 300 letters.

    With the next one if it ends with a colon.
    """
    if delayed := _DELAYED.match(str(text)):
        return delayed[1].strip()[:300]
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    announces = len(lines) > 1 and lines[0].endswith(":")
    return " ".join(lines[: 2 if announces else 1])[:300]


def first_words(error: BaseException) -> str:
    """The innermost cause that torch names on one line, as torch or the user's code said it."""
    inner = getattr(error, "inner_exception", None) or error
    name, words = type(inner).__name__, first_line(inner)
    return f"{name}: {words}" if words else name
