"""The parent's state of one running trial: the clock of its deadlines, its pipes and its log.

What the trial says arrives at :class:`autocompile.execute.heard.Heard`; how it ended is named by
:mod:`autocompile.execute.ending`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autocompile.errors import RunError
from autocompile.execute.executor import Job
from autocompile.execute.memory import oom_kills
from autocompile.protocol.processes import MARKER
from autocompile.store.files import not_for_all
from autocompile.store.record import Step

# Total: of all steps together.
KilledFor = Literal["timeout", "total", "memory", "interrupted"]
_EXIT_GRACE_S = 10.0  # to exit after sending the result
_HEAD_BYTES, _TAIL_BYTES = 256 * 1024, 64 * 1024  # of the output, that are kept


class Clock:
    """When a trial was in which step, without the time in which it was stopped."""

    def __init__(self) -> None:
        self.step = Step.IMPORT
        # Step, begin, end, by time.monotonic.
        self.spans: list[tuple[str, float, float]] = []
        self.pauses: list[tuple[float, float]] = []
        self._held_at: float | None = None
        self._waits = False
        self._began = self._step_began = self._span_began = time.monotonic()

    def enter(self, step: Step) -> None:
        now = time.monotonic() if self._held_at is None else self._held_at
        self.spans.append((self.step.value, self._span_began, now))
        self.step, self._step_began, self._span_began = step, now, now

    def hold(self, waits: bool = False) -> None:
        """Stop the clock; ``waits``: for exclusive use, a time that the trial counts itself."""
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
        found: dict[str, float] = {}
        for step, begin, end in self.spans:
            found[step] = found.get(step, 0.0) + end - begin
        return found

    def left(self, step_s: float, total_s: float | None) -> float:
        """Seconds until the next deadline; infinite while the clock is stopped."""
        if self._held_at is not None:
            return float("inf")
        ends = [self._step_began + step_s]
        if total_s is not None:
            ends.append(self._began + total_s)
        return min(ends) - time.monotonic()


class Pipes:
    """The parent's ends of a trial's pipes; the trial's are ``theirs``, in the same order."""

    def __init__(self) -> None:
        self.results, results = os.pipe()
        self.output, output = os.pipe()
        control, self.control = os.pipe()
        self.ours = self.results, self.output, self.control
        self.theirs = results, output, control
        for descriptor in self.ours:
            os.set_blocking(descriptor, False)


class CappedLog:
    """A trial's output on disk: the first and the last part, with what was cut out counted."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", opener=not_for_all)  # noqa: SIM115  (closed in close())
        self._size, self._end = 0, b""

    def write(self, data: bytes) -> None:
        """A full disk loses the log, not the trial."""
        with contextlib.suppress(OSError):
            self._file.write(data[: max(0, _HEAD_BYTES - self._size)])
            self._file.flush()
        self._size += len(data)
        self._end = (self._end + data)[-_TAIL_BYTES:]

    def close(self) -> None:
        left = max(0, self._size - _HEAD_BYTES)
        with contextlib.suppress(OSError):
            if left > _TAIL_BYTES:
                self._file.write(
                    f"\n[... {left - _TAIL_BYTES} bytes left out ...]\n".encode()
                )
            self._file.write(self._end[len(self._end) - min(left, _TAIL_BYTES) :])
            self._file.close()


@dataclass
class Child:
    """One running trial."""

    job: Job
    pipes: Pipes
    log: CappedLog
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    marker: str = field(default_factory=lambda: secrets.token_hex(8))
    clock: Clock = field(default_factory=Clock)
    # pid of the subreaper, the ancestor of all of the trial's processes
    supervisor: int = 0
    # pid of what runs the trial; None until it has reported it
    worker: int | None = None
    # Pids, while another has exclusive use.
    stopped: list[int] = field(default_factory=list)
    # the supervisor, unless it was forked
    process: subprocess.Popen[bytes] | None = None
    pidfd: int | None = None  # of the supervisor
    forked: bool = False
    not_built: str = ""  # as of an Ending
    company: bool = False  # another trial ran at the same time
    gone: bool = False
    # could not be killed (uninterruptible in a driver or a file system)
    lost: bool = False
    oom_before: int = 0
    result: dict[str, Any] | None = None
    measured: dict[str, Any] | None = None  # counts if no result comes
    code: int | None = None  # the worker's exit code, as in subprocess
    rank: int | None = (
        None  # of several, the one that ended first, before its work was done
    )
    garbage: str | None = None  # invalid data that came through the result channel
    killed_for: KilledFor | None = None
    # deadline for its stack dump; None while none was requested
    kill_at: float | None = None
    last_output: bytes = b""
    dump: bytes = b""

    @classmethod
    def of(cls, job: Job) -> Child:
        """A trial that has no process yet, with its pipes and its log."""
        try:
            log = CappedLog(job.folder / "log.txt")
        except OSError as error:
            raise RunError(
                f"cannot write in {job.folder}: {error.strerror or error}",
                hint="free some space or make the folder writable, then rerun with --resume",
            ) from error
        return cls(job, Pipes(), log, oom_before=oom_kills())

    @property
    def arguments(self) -> dict[str, Any]:
        """What the trial needs besides the three descriptors."""
        return {
            "folder": str(self.job.folder),
            "nonce": self.nonce,
            "environment": {**self.job.environment, MARKER: self.marker},
        }

    @property
    def groups(self) -> list[int]:
        """The process group of a live worker, which leads its own session; else empty."""
        over = self.code is not None or self.gone
        return [] if self.worker is None or over else [self.worker]

    def left_s(self) -> float:
        if self.kill_at is not None:
            return self.kill_at - time.monotonic()
        if self.result is not None:
            return self.clock.left(_EXIT_GRACE_S, None)
        return self.clock.left(
            self.job.allowed_s(self.clock.step), self.job.total_timeout_s
        )

    def take_output(self, data: bytes) -> None:
        """Add output to the log, and to the stack dump if one was requested."""
        self.log.write(data)
        self.last_output = (self.last_output + data)[-2000:]
        if self.kill_at is not None:
            self.dump = (self.dump + data)[:16_384]

    def close(self) -> None:
        """Close the parent's ends and the log, once all its processes have ended."""
        for descriptor in self.pipes.ours:
            os.close(descriptor)
        self.log.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
