"""The seam between the study and whatever runs a trial: its verbs and three events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autocompile.store.record import Outcome, Step

__all__ = ["Ended", "Ending", "Event", "Executor", "Job", "Stepped", "Told"]


@dataclass(frozen=True)
class Job:
    """One trial to run.

    Attributes:
        number: identifies the job among those that are running.
        folder: where ``request.json`` stands and ``log.txt`` will.
        timeout_s: the longest that the trial may stay in one step.
        compile_timeout_s: the longest in the compile step; ``timeout_s`` if None.
        total_timeout_s: the longest in all steps together; no limit if None.
        memory_limit_bytes: the most memory that its processes may hold together; None: no limit.
        environment: environment variables on top of the parent's.
        fresh: run it in an interpreter of its own, whatever the executor does otherwise.
        python: the interpreter to run it under; None for the executor's own.
        toolchain: for the probe: where what every compiler cache starts with is to be, if not
            there yet; None if nothing is going to be compiled.
    """

    number: int
    folder: Path
    timeout_s: float
    compile_timeout_s: float | None = None
    total_timeout_s: float | None = None
    memory_limit_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    python: str | None = None
    toolchain: Path | None = None

    def allowed_s(self, step: Step) -> float:
        """The longest that the trial may stay in a step."""
        if step is Step.COMPILE and self.compile_timeout_s is not None:
            return self.compile_timeout_s
        return self.timeout_s


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        outcome: from the closed list.
        step: the step that it reached.
        message: one line, with torch's own words where torch spoke.
        payload: what the trial sent with its result, as :mod:`autocompile.protocol.results` reads
            it; empty when it sent none.
        wall_s: seconds from the start of the process to its end, pauses left out.
        step_s: seconds spent in each step that was begun, pauses left out.
        pauses: when it was held for the sake of another's measurement: begin and end, as
            ``time.monotonic`` gives them, which on Linux all processes share.
        stack: what the stuck process was doing when its time was over.
        doubts: circumstances that may have caused a failure, such as ``beside other trials``.
        first: how the first try ended, where this is a second one.
    """

    outcome: Outcome
    step: Step
    message: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    step_s: Mapping[str, float] = field(default_factory=dict)
    pauses: Sequence[tuple[float, float]] = ()
    stack: str = ""
    doubts: Sequence[str] = ()
    first: Ending | None = None


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


@dataclass(frozen=True)
class Told:
    """Something about the executor itself that a user should know."""

    text: str


Event = Stepped | Ended | Told


class Executor(Protocol):
    """Runs jobs; every way a job can fail arrives as an :class:`Ended`, never as an exception.

    Attributes:
        slots: how many jobs may run at once.
    """

    slots: int

    def start(self, job: Job) -> None:
        """Begin a job whose ``request.json`` is on disk, now or in a later :meth:`wait`."""

    def wait(self, timeout_s: float) -> list[Event]:
        """Sleep until something happens or the time is over; what happened, in order."""

    def cancel(self, number: int) -> None:
        """End a job now; it arrives as ``interrupted`` from the next :meth:`wait`."""

    def close(self) -> None:
        """End everything that still runs and leave nothing alive."""
