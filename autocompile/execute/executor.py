"""The seam between the study and whatever runs a trial: three verbs and two events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autocompile.record import Outcome, Step

__all__ = ["Ended", "Ending", "Event", "Executor", "Job", "Stepped"]


@dataclass(frozen=True)
class Job:
    """One trial to run.

    Attributes:
        number: identifies the job among those that are running.
        folder: where ``request.json`` stands and ``log.txt`` will.
        timeout_s: the longest that the trial may stay in one step.
        memory_limit_bytes: the most memory that its processes may hold together; None: no limit.
        environment: environment variables on top of the parent's.
    """

    number: int
    folder: Path
    timeout_s: float
    memory_limit_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        outcome: from the closed list.
        step: the step that it reached.
        message: one line, with torch's own words where torch spoke.
        payload: what the trial sent with its result; empty when it sent none.
        wall_s: seconds from the start of the process to its end.
        step_s: seconds spent in each step that was begun.
    """

    outcome: Outcome
    step: Step
    message: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    step_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stepped:
    """A job has begun a step."""

    number: int
    step: Step


@dataclass(frozen=True)
class Ended:
    """A job is over and nothing of it is alive."""

    number: int
    ending: Ending


Event = Stepped | Ended


class Executor(Protocol):
    """Runs jobs; every way a job can fail arrives as an :class:`Ended`, never as an exception."""

    def start(self, job: Job) -> None:
        """Begin a job whose ``request.json`` is on disk."""

    def wait(self, timeout_s: float) -> list[Event]:
        """Sleep until something happens or the time is over; what happened, in order."""

    def cancel(self, number: int) -> None:
        """End a job now; it arrives as ``interrupted`` from the next :meth:`wait`."""

    def close(self) -> None:
        """End everything that still runs and leave nothing alive."""
