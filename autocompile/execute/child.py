"""The parent's state of one running trial, and the clock for its deadlines."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from autocompile.execute.channel import CappedLog
from autocompile.execute.executor import Job
from autocompile.execute.memory import Cgroup
from autocompile.protocol.events import LineReader
from autocompile.protocol.processes import MARKER
from autocompile.store.record import Step

__all__ = ["Child", "Clock", "KilledFor", "Pipes"]

KilledFor = Literal["timeout", "total", "memory", "interrupted"]
_EXIT_GRACE_S = 10.0  # to exit after sending the result


class Clock:
    """When a trial was in which step, without the time in which it was stopped.

    Attributes:
        step: the present one.
        spans: step, begin and end of each stretch of work, by ``time.monotonic``.
        pauses: begin and end of each stop.
    """

    def __init__(self) -> None:
        self.step = Step.IMPORT
        self.spans: list[tuple[str, float, float]] = []
        self.pauses: list[tuple[float, float]] = []
        self._held_at: float | None = None
        self._waits = False
        self._began = self._step_began = self._span_began = time.monotonic()

    def enter(self, step: Step) -> None:
        """Begin a step."""
        now = self._now()
        self.spans.append((self.step.value, self._span_began, now))
        self.step, self._step_began, self._span_began = step, now, now

    def hold(self, waits: bool = False) -> None:
        """Stop the clock.

        Args:
            waits: the trial waits for exclusive use and counts that time itself.
        """
        if self._held_at is None:
            now = time.monotonic()
            self.spans.append((self.step.value, self._span_began, now))
            self._held_at, self._span_began, self._waits = now, now, waits
        elif waits:  # it requested exclusive use just before we stopped it
            self._waits = True

    def go(self) -> None:
        """Continue; the starts of the step and the trial move forward by the pause."""
        if self._held_at is None:
            return
        now = time.monotonic()
        if not self._waits:
            self.pauses.append((self._held_at, now))
        self._began += now - self._held_at
        self._step_began += now - self._held_at
        self._held_at, self._span_began = None, now

    @property
    def step_s(self) -> dict[str, float]:
        """Seconds in each step."""
        found: dict[str, float] = {}
        for step, begin, end in self.spans:
            found[step] = found.get(step, 0.0) + end - begin
        return found

    @property
    def total_s(self) -> float:
        """Seconds since the trial started."""
        return self._now() - self._began

    def left(self, step_s: float, total_s: float | None) -> float:
        """Seconds until the next deadline; infinite while the clock is stopped."""
        if self._held_at is not None:
            return float("inf")
        now = time.monotonic()
        lefts = [self._step_began + step_s - now]
        if total_s is not None:
            lefts.append(self._began + total_s - now)
        return min(lefts)

    def _now(self) -> float:
        return time.monotonic() if self._held_at is None else self._held_at


@dataclass
class Pipes:
    """The pipes for results, output and control, each as (the parent's end, the trial's end)."""

    results: tuple[int, int] = field(default_factory=os.pipe)
    output: tuple[int, int] = field(default_factory=os.pipe)
    control: tuple[int, int] = field(default_factory=lambda: os.pipe()[::-1])

    def __post_init__(self) -> None:
        self.ours = self.results[0], self.output[0], self.control[0]
        self.theirs = self.results[1], self.output[1], self.control[1]
        for descriptor in self.ours:
            os.set_blocking(descriptor, False)

    def close_theirs(self) -> None:
        """Close the trial's ends, once the trial has inherited them."""
        for descriptor in self.theirs:
            os.close(descriptor)

    def close_ours(self) -> None:
        """Close the parent's ends."""
        for descriptor in self.ours:
            os.close(descriptor)


@dataclass
class Child:
    """One running trial.

    Attributes:
        supervisor: pid of the subreaper, the ancestor of all of the trial's processes.
        worker: pid of the process that runs the trial; None until it has reported it.
        stopped: pids that were stopped while another trial has exclusive use.
        forked: it came from the fork server.
        company: another trial ran at the same time.
        lost: it could not be killed (uninterruptible in a driver or a file system).
        result: its result message.
        code: the worker's exit code, as in ``subprocess``.
        garbage: invalid data that came through the result channel.
        killed_for: why it was killed; ``total``: all steps together took too long.
        kill_at: deadline for its stack dump; None while no dump was requested.
    """

    job: Job
    pipes: Pipes
    log: CappedLog
    cgroup: Cgroup | None = None
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    marker: str = field(default_factory=lambda: secrets.token_hex(8))
    clock: Clock = field(default_factory=Clock)
    supervisor: int = 0
    worker: int | None = None
    stopped: list[int] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    pidfd: int | None = None
    forked: bool = False
    company: bool = False
    gone: bool = False
    lost: bool = False
    oom_before: int = 0
    result: dict[str, Any] | None = None
    code: int | None = None
    garbage: str | None = None
    killed_for: KilledFor | None = None
    kill_at: float | None = None
    last_output: bytes = b""
    dump: bytes = b""

    def __post_init__(self) -> None:
        self.reader = LineReader(self.nonce)

    @property
    def arguments(self) -> dict[str, Any]:
        """What the trial needs besides the three descriptors."""
        return {
            "folder": str(self.job.folder),
            "nonce": self.nonce,
            "cgroup": str(self.cgroup.entrance) if self.cgroup else "",
            "environment": {**self.job.environment, MARKER: self.marker},
        }

    @property
    def groups(self) -> list[int]:
        """The process group of a live worker, which leads its own session; else empty."""
        over = self.code is not None or self.gone
        return [] if self.worker is None or over else [self.worker]

    def left_s(self) -> float:
        """Seconds until its next deadline."""
        if self.kill_at is not None:
            return self.kill_at - time.monotonic()
        if self.result is not None:
            return self.clock.left(_EXIT_GRACE_S, None)
        return self.clock.left(self.job.allowed_s(self.clock.step), self.job.total_timeout_s)

    def take_output(self, data: bytes) -> None:
        """Add output to the log, and to the stack dump if one was requested."""
        self.log.write(data)
        self.last_output = (self.last_output + data)[-2000:]
        if self.kill_at is not None:
            self.dump = (self.dump + data)[:16_384]

    @property
    def last_line(self) -> str:
        """The last line that it printed."""
        lines = self.last_output.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    @property
    def stack(self) -> str:
        """The stack dump of a trial that timed out."""
        return self.dump.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Close the parent's ends, the log and the cgroup, once all its processes have ended."""
        self.pipes.close_ours()
        self.log.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        if self.cgroup is not None:
            self.cgroup.remove()
