"""The Executor protocol: how the search starts and awaits trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autocompile.store.record import Outcome, Step


@dataclass(frozen=True)
class Job:
    """One trial to run, in a folder that holds ``request.json``; ``log.txt`` is written there."""

    number: int  # unique among running jobs
    folder: Path
    timeout_s: float  # of each step
    compile_timeout_s: float | None = None  # of the compile step, if another
    total_timeout_s: float | None = None  # of all steps together; None: no limit
    # of all its processes together; None: no limit
    memory_limit_bytes: int | None = None
    # On top of the parent's.
    environment: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False  # in a new interpreter, not in a fork
    python: str | None = None  # path of the interpreter; None: the executor's own
    # folder that a probe makes, and compiler caches start with
    toolchain: Path | None = None
    # what its target is made of, as ``Header.made_of``; jobs of the same may share a built one
    made_of: str = ""
    builds: bool = False  # its target is built once, for the jobs after it, too

    def allowed_s(self, step: Step) -> float:
        if step is Step.COMPILE and self.compile_timeout_s is not None:
            return self.compile_timeout_s
        return self.timeout_s


@dataclass(frozen=True)
class Ending:
    """How a job ended; seconds are without pauses."""

    outcome: Outcome
    step: Step  # the last that it reached
    message: str = ""  # one line, including torch's error message if there was one
    # As autocompile.protocol.requests has it.
    payload: Mapping[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    step_s: Mapping[str, float] = field(default_factory=dict)
    # Of work: step, begin, end in Unix time.
    spans: tuple[tuple[str, float, float], ...] = ()
    # When it was stopped for another trial's measurement, by time.monotonic, which all share.
    pauses: tuple[tuple[float, float], ...] = ()
    stack: str = ""  # of a process that timed out
    # What may have caused a failure, as ``beside other trials``.
    doubts: tuple[str, ...] = ()
    first: Ending | None = None  # how the first try ended, if this is the second
    # why its target could not be built for the jobs after it, too
    not_built: str = ""
    # how it would have ended without the measurement that it had sent before; None: as it did
    cut: Outcome | None = None


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
    """Runs jobs. A job that fails in any way is reported as :class:`Ended`, never raised."""

    slots: int  # how many jobs may run at once
    lanes: int  # how many of them may measure at once

    def compile_threads(self, alone: bool) -> int:
        """With how many threads a job may compile, so that all that run fit the cores."""

    def start(self, job: Job) -> None:
        """Start a job whose ``request.json`` is on disk, or queue it for a later :meth:`wait`."""

    def wait(self, timeout_s: float) -> list[Event]:
        """Wait for events; returns them in order, or an empty list after ``timeout_s``."""

    def cancel(self, number: int) -> None:
        """Kill a job; the next :meth:`wait` reports it as ``interrupted``."""

    def close(self) -> None:
        """Kill everything that still runs."""
