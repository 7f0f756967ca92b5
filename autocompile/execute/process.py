"""LocalExecutor: a fresh interpreter for each trial, in a session of its own.

The parent sleeps in ``select`` while a trial works. Deadlines live here, because a timer in the
trial would not fire while its interpreter lock is held. When a trial ends, however it ends, its
whole process tree is killed before anybody is told.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from autocompile.execute.channel import CappedLog, ChannelError, LineReader, drain
from autocompile.execute.ending import Sighting, conclude
from autocompile.execute.executor import Ended, Ending, Event, Job, Stepped
from autocompile.execute.tree import MARKER, kill_tree, oom_kills, tree_memory_bytes
from autocompile.record import Step

__all__ = ["LocalExecutor"]

_EXIT_GRACE_S = 10.0  # to leave after the result has been sent
_DUMP_GRACE_S = 1.0  # to write its stacks before it is killed
_ENVELOPE = frozenset({"v", "nonce", "event", "outcome", "step", "message"})
_POLL_S = 0.5  # how often memory and, without pidfd, the process itself are looked at


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    marker: str
    reader: LineReader
    log: CappedLog
    result_pipe: int
    output_pipe: int
    oom_before: int
    pidfd: int | None
    started: float = field(default_factory=time.monotonic)
    step: Step = Step.IMPORT
    step_began: float = field(default_factory=time.monotonic)
    step_s: dict[str, float] = field(default_factory=dict)
    result: dict[str, Any] | None = None
    garbage: str | None = None
    killed_for: str | None = None
    kill_at: float | None = None
    last_words: bytes = b""

    def enter(self, step: Step) -> None:
        now = time.monotonic()
        spent = self.step_s.get(self.step.value, 0.0)
        self.step_s[self.step.value] = spent + now - self.step_began
        self.step, self.step_began = step, now

    @property
    def deadline(self) -> float:
        if self.kill_at is not None:
            return self.kill_at
        allowed = _EXIT_GRACE_S if self.result is not None else self.job.timeout_s
        return self.step_began + allowed


class LocalExecutor:
    """Runs trials on this machine, each under ``python -m autocompile.trial``.

    Args:
        python: the interpreter; this one when None.
    """

    def __init__(self, python: str | None = None) -> None:
        self._python = python or sys.executable
        self._selector = selectors.DefaultSelector()
        self._running: dict[int, _Running] = {}

    def start(self, job: Job) -> None:
        """Start the trial's process; its ``request.json`` must be on disk."""
        result_read, result_write = os.pipe()
        output_read, output_write = os.pipe()
        os.set_blocking(result_read, False)
        os.set_blocking(output_read, False)
        nonce, marker = secrets.token_hex(8), secrets.token_hex(8)
        command = [self._python, "-m", "autocompile.trial", str(job.folder)]
        try:
            process = subprocess.Popen(
                [*command, "--channel", str(result_write), "--nonce", nonce],
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=(result_write,),
                start_new_session=True,
                env={**os.environ, **job.environment, MARKER: marker},
            )
        finally:
            os.close(result_write)
            os.close(output_write)
        running = _Running(
            job,
            process,
            marker,
            LineReader(nonce),
            CappedLog(job.folder / "log.txt"),
            result_read,
            output_read,
            oom_kills(),
            os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else None,
        )
        self._running[job.number] = running
        for descriptor in (result_read, output_read, running.pidfd):
            if descriptor is not None:
                self._selector.register(descriptor, selectors.EVENT_READ, running)

    def wait(self, timeout_s: float) -> list[Event]:
        """Sleep until a trial says something, ends, or passes a deadline."""
        events: list[Event] = []
        until = time.monotonic() + timeout_s
        while not events and self._running:
            now = time.monotonic()
            if now >= until:
                break
            nearest = min(r.deadline for r in self._running.values())
            sleep = max(0.0, min(until, nearest) - now)
            for key, _ in self._selector.select(min(sleep, _POLL_S)):
                if key.fd != key.data.pidfd:  # a pidfd only wakes us: its process has ended
                    self._read(key.data, key.fd, events)
            for running in list(self._running.values()):
                self._look_after(running)
                if running.process.poll() is not None:
                    events += self._finish(running)
        return events

    def cancel(self, number: int) -> None:
        """Kill a trial's processes; it ends as ``interrupted``."""
        if running := self._running.get(number):
            running.killed_for = "interrupted"
            kill_tree(running.process.pid, running.marker)

    def close(self) -> None:
        """Kill every trial that still runs."""
        for running in list(self._running.values()):
            self.cancel(running.job.number)
            running.process.wait()
            self._finish(running)
        self._selector.close()

    def _read(self, running: _Running, descriptor: int, events: list[Event]) -> bool:
        """Take what a pipe holds now; False when that is nothing."""
        data = drain(descriptor)
        if data is None:
            self._selector.unregister(descriptor)
        elif descriptor == running.output_pipe:
            running.log.write(data)
            running.last_words = (running.last_words + data)[-2000:]
        else:
            self._take(running, data, events)
        return bool(data)

    def _take(self, running: _Running, data: bytes, events: list[Event]) -> None:
        try:
            for message in running.reader.feed(data):
                if message.get("event") == "step":
                    running.enter(Step(message["step"]))
                    events.append(Stepped(running.job.number, running.step))
                elif message.get("event") == "result" and running.result is None:
                    running.result = message
                    running.enter(Step.EXIT)
        except (ChannelError, KeyError, ValueError) as error:
            running.garbage = str(error)
            kill_tree(running.process.pid, running.marker)

    def _look_after(self, running: _Running) -> None:
        """Hold the trial to its deadline and its memory limit."""
        limit = running.job.memory_limit_bytes
        if limit is not None and tree_memory_bytes(running.process.pid) > limit:
            running.killed_for = "memory"
            kill_tree(running.process.pid, running.marker)
        elif time.monotonic() < running.deadline:
            return
        elif running.kill_at is None and running.result is None:
            running.killed_for = "timeout"
            running.kill_at = time.monotonic() + _DUMP_GRACE_S
            running.process.send_signal(signal.SIGUSR1)  # faulthandler writes every stack
        else:
            kill_tree(running.process.pid, running.marker)

    def _finish(self, running: _Running) -> list[Event]:
        """Read what is left, kill what is left, and say how it ended."""
        events: list[Event] = []
        kill_tree(running.process.pid, running.marker)
        running.process.wait()
        registered = self._selector.get_map()
        for descriptor in (running.result_pipe, running.output_pipe):
            while descriptor in registered and self._read(running, descriptor, events):
                pass
            if descriptor in registered:
                self._selector.unregister(descriptor)
            os.close(descriptor)
        if running.pidfd is not None:
            self._selector.unregister(running.pidfd)
            os.close(running.pidfd)
        running.enter(running.step)
        running.log.close()
        words = running.last_words.decode("utf-8", "replace").strip().splitlines()
        limits = {
            "timeout": f"{running.job.timeout_s:.0f} s",
            "memory": f"{(running.job.memory_limit_bytes or 0) / 2**30:.1f} GiB",
        }
        outcome, step, message = conclude(
            Sighting(
                step=running.step,
                result=running.result,
                returncode=running.process.returncode,
                killed_for=running.killed_for,
                limit=limits.get(running.killed_for or "", ""),
                garbage=running.garbage,
                oom_killed=oom_kills() > running.oom_before,
                last_words=words[-1][:200] if words else "",
            )
        )
        del self._running[running.job.number]
        payload = {k: v for k, v in (running.result or {}).items() if k not in _ENVELOPE}
        wall_s = time.monotonic() - running.started
        ending = Ending(outcome, step, message, payload, wall_s, running.step_s)
        return [*events, Ended(running.job.number, ending)]
