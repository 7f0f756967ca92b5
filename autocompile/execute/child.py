"""The parent's state of one running trial: the clock of its deadlines, its pipes and its log.

When it has ended, :func:`ending_of` assigns an outcome to it, from what the parent observed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autocompile.errors import RunError
from autocompile.execute.executor import Ending, Job
from autocompile.execute.memory import oom_kills
from autocompile.protocol.events import LineReader
from autocompile.protocol.processes import MARKER
from autocompile.store.files import not_for_all
from autocompile.store.record import Outcome, Step

KilledFor = Literal[
    "timeout", "total", "memory", "interrupted"
]  # total: of all steps together
_EXIT_GRACE_S = 10.0  # to exit after sending the result
_HEAD_BYTES, _TAIL_BYTES = 256 * 1024, 64 * 1024  # of the output, that are kept
_FRAME = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>\S+)')
_DOUBTFUL = (Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY, Outcome.INFRASTRUCTURE)


class Clock:
    """When a trial was in which step, without the time in which it was stopped."""

    def __init__(self) -> None:
        self.step = Step.IMPORT
        self.spans: list[
            tuple[str, float, float]
        ] = []  # step, begin, end, by time.monotonic
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
    supervisor: int = (
        0  # pid of the subreaper, the ancestor of all of the trial's processes
    )
    worker: int | None = (
        None  # pid of what runs the trial; None until it has reported it
    )
    stopped: list[int] = field(
        default_factory=list
    )  # pids, while another has exclusive use
    process: subprocess.Popen[bytes] | None = (
        None  # the supervisor, unless it was forked
    )
    pidfd: int | None = None  # of the supervisor
    forked: bool = False
    company: bool = False  # another trial ran at the same time
    gone: bool = False
    lost: bool = (
        False  # could not be killed (uninterruptible in a driver or a file system)
    )
    oom_before: int = 0
    result: dict[str, Any] | None = None
    measured: dict[str, Any] | None = None  # counts if no result comes
    code: int | None = None  # the worker's exit code, as in subprocess
    garbage: str | None = None  # invalid data that came through the result channel
    killed_for: KilledFor | None = None
    kill_at: float | None = (
        None  # deadline for its stack dump; None while none was requested
    )
    last_output: bytes = b""
    dump: bytes = b""

    def __post_init__(self) -> None:
        self.reader = LineReader(self.nonce)

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


def ending_of(child: Child) -> Ending:
    """How a trial ended; all its processes are dead."""
    ours = child.killed_for is not None or child.garbage is not None
    was_killed = child.code == -signal.SIGKILL and not ours
    # The count may have risen by another process: it stands for this one only if the worker died
    # of a SIGKILL that was not ours, or says that something else failed, such as its compiler.
    may_be_oom = was_killed or (child.result is not None and not ours)
    outcome, step, message = conclude(
        child, may_be_oom and oom_kills() > child.oom_before
    )
    payload = child.result or {}
    if child.result is None and child.measured is not None and child.garbage is None:
        payload, told = child.measured, f"after its measurement: {message}"
        if isinstance(notes := payload.get("notes"), list):
            payload = {**payload, "notes": [*notes, told]}
        outcome, step, message = Outcome.OK, Step.EXIT, ""
    # Forking or another trial can cause these; a setting that raises would raise again.
    died = (
        outcome is Outcome.CRASHED
        and child.code is not None
        and child.code < 0
        and not ours
    )
    doubts = {"forked": child.forked, "beside other trials": child.company}
    since = time.time() - time.monotonic()
    return Ending(
        outcome,
        step,
        message,
        payload,
        wall_s=sum(child.clock.step_s.values()),
        step_s=child.clock.step_s,
        spans=tuple(
            (step, since + begin, since + end) for step, begin, end in child.clock.spans
        ),
        pauses=tuple(child.clock.pauses),
        stack=child.dump.decode("utf-8", "replace").strip(),
        doubts=tuple(n for n in doubts if doubts[n] and (died or outcome in _DOUBTFUL)),
    )


def conclude(child: Child, is_oom: bool = False) -> tuple[Outcome, Step, str]:
    """Outcome, step and one-line message of a trial that has ended.

    A result that has arrived is final, whatever the process does later. The exception is a
    failure while the OOM killer ended a process of the trial: that is out of memory.
    """
    job, step, code = child.job, child.clock.step, child.code
    said_in, words = step, ""
    if child.result is not None:
        said = child.result
        try:
            outcome, said_in = Outcome(said["outcome"]), Step(said["step"])
        except (KeyError, ValueError):
            return Outcome.CRASHED, step, "sent a malformed result"
        words = str(said.get("message", ""))
        if outcome is Outcome.OK or not is_oom:
            return outcome, said_in, words
    match child.killed_for:
        case "interrupted":
            return Outcome.INTERRUPTED, step, "stopped before it finished"
        case "timeout":
            what = f"still in {step.value} after {job.allowed_s(step):.0f} s"
            return Outcome.TIMEOUT, step, what + _place(child)
        case "total":
            what = f"all steps together took more than {job.total_timeout_s or 0:.0f} s"
            return Outcome.TIMEOUT, step, what + _place(child)
        case "memory":
            gib = (job.memory_limit_bytes or 0) / 2**30
            return (
                Outcome.OUT_OF_MEMORY,
                step,
                f"its processes held more than {gib:.1f} GiB",
            )
    if is_oom:
        what = "the kernel's OOM killer ended one of its processes"
        return Outcome.OUT_OF_MEMORY, said_in, what + (f" ({words})" if words else "")
    if child.garbage is not None:
        return Outcome.CRASHED, step, f"wrote to the result channel: {child.garbage}"
    if code is None:
        return Outcome.INFRASTRUCTURE, step, "its processes were killed from outside"
    if code < 0:
        name = (
            signal.Signals(-code).name
            if -code in set(signal.Signals)
            else f"signal {-code}"
        )
        return Outcome.CRASHED, step, f"{name} in {step.value}"
    what = f"exited with code {code} in {step.value} without a result"
    lines = child.last_output.decode("utf-8", "replace").strip().splitlines()
    return Outcome.CRASHED, step, f"{what}: {lines[-1][:200]}" if lines else what


def _place(child: Child) -> str:
    """The innermost frame of the thread that was running, as ``, in f (model.py:7)``."""
    _, found, rest = child.dump.decode("utf-8", "replace").rpartition(
        "(most recent call first):"
    )
    match = _FRAME.search(rest) if found else None
    if match is None:
        return ""
    name = match["file"].replace("\\", "/").rsplit("/", 1)[-1]
    return f", in {match['name']} ({name}:{match['line']})"
