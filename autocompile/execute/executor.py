"""The Executor protocol: how the search starts and awaits trials."""

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
        number: unique among running jobs.
        folder: holds ``request.json``; ``log.txt`` is written there.
        timeout_s: limit for each step.
        compile_timeout_s: limit for the compile step; ``timeout_s`` if None.
        total_timeout_s: limit for all steps together; None: no limit.
        memory_limit_bytes: limit for all its processes together; None: no limit.
        environment: environment variables on top of the parent's.
        fresh: run it in a new interpreter, not in a fork.
        python: path of the interpreter; None: the executor's own.
        toolchain: of a probe: folder to create if missing, with the files that every compiler
            cache starts with; None if nothing will be compiled.
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
        """The time limit of a step."""
        if step is Step.COMPILE and self.compile_timeout_s is not None:
            return self.compile_timeout_s
        return self.timeout_s


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        outcome: from the closed list.
        step: the last step it reached.
        message: one line, including torch's error message if there was one.
        payload: what the trial sent with its result, as :mod:`autocompile.protocol.results` reads
            it; empty when it sent none.
        wall_s: seconds from the start of the process to its end, without pauses.
        step_s: seconds in each step, without pauses.
        spans: step, begin and end of each stretch of work between pauses, in Unix time.
        pauses: (begin, end) of each time it was stopped for another trial's measurement, by
            ``time.monotonic``, which all processes share on Linux.
        stack: stack dump of a process that timed out.
        doubts: circumstances that may have caused a failure, such as ``beside other trials``.
        first: how the first try ended, if this is the second.
    """

    outcome: Outcome
    step: Step
    message: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    step_s: Mapping[str, float] = field(default_factory=dict)
    spans: Sequence[tuple[str, float, float]] = ()
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
    """A job has ended, and all its processes are dead."""

    number: int
    ending: Ending


@dataclass(frozen=True)
class Told:
    """A message from the executor to the user."""

    text: str


Event = Stepped | Ended | Told


class Executor(Protocol):
    """Runs jobs. A job that fails in any way is reported as :class:`Ended`, never raised.

    Attributes:
        slots: how many jobs may run at once.
    """

    slots: int

    def start(self, job: Job) -> None:
        """Start a job whose ``request.json`` is on disk, or queue it for a later :meth:`wait`."""

    def wait(self, timeout_s: float) -> list[Event]:
        """Wait for events; returns them in order, or an empty list after ``timeout_s``."""

    def cancel(self, number: int) -> None:
        """Kill a job; the next :meth:`wait` reports it as ``interrupted``."""

    def close(self) -> None:
        """Kill everything that still runs."""
