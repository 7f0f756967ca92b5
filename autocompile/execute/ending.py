"""One function that turns what the parent saw of a process into an outcome."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autocompile.record import Outcome, Step

__all__ = ["Sighting", "conclude"]


@dataclass(frozen=True)
class Sighting:
    """All that the parent knows of a process that is gone.

    Attributes:
        step: the last step that the trial announced.
        result: its result message, if one arrived.
        returncode: as ``subprocess`` gives it: negative for a signal.
        killed_for: why the parent killed it: ``timeout``, ``memory``, ``interrupted``.
        limit: the limit that was passed, in words.
        garbage: what came through the result channel that was no message.
        oom_killed: the kernel killed something for want of memory meanwhile.
        last_words: the last line that the process printed.
    """

    step: Step
    result: Mapping[str, Any] | None
    returncode: int | None
    killed_for: str | None = None
    limit: str = ""
    garbage: str | None = None
    oom_killed: bool = False
    last_words: str = ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def conclude(seen: Sighting) -> tuple[Outcome, Step, str]:
    """Outcome, step and one-line message.

    A result is final when its line has arrived: what the process does afterwards cannot undo it.
    """
    if seen.result is not None:
        try:
            outcome, step = Outcome(seen.result["outcome"]), Step(seen.result["step"])
            return outcome, step, str(seen.result.get("message", ""))
        except (KeyError, ValueError):
            return Outcome.CRASHED, seen.step, "sent a result that is none"
    if seen.killed_for == "interrupted":
        return Outcome.INTERRUPTED, seen.step, "stopped by the user"
    if seen.killed_for == "timeout":
        return Outcome.TIMEOUT, seen.step, f"still in {seen.step.value} after {seen.limit}"
    if seen.killed_for == "memory":
        return Outcome.OUT_OF_MEMORY, seen.step, f"its processes held more than {seen.limit}"
    if seen.garbage is not None:
        return Outcome.CRASHED, seen.step, f"wrote to the result channel: {seen.garbage}"
    code = seen.returncode
    if code is not None and code < 0:
        name = _signal_name(-code)
        if name == "SIGKILL" and seen.oom_killed:
            return Outcome.OUT_OF_MEMORY, seen.step, "the kernel killed it for want of memory"
        return Outcome.CRASHED, seen.step, f"{name} in {seen.step.value}"
    words = f": {seen.last_words}" if seen.last_words else ""
    return (
        Outcome.CRASHED,
        seen.step,
        f"exited with code {code} in {seen.step.value} without a result{words}",
    )
