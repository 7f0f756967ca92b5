"""LocalExecutor: runs several trials at once on this machine, each in its own processes.

The parent sleeps in ``select``. It keeps the deadlines, since a timer inside a trial does not
fire while the GIL is held. A trial is reported as ended only after its process tree is dead.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import sys
import time
from collections import deque

from autocompile.errors import UsageError
from autocompile.execute.child import Child, KilledFor
from autocompile.execute.ending import ending_of, never_started, stopped_early
from autocompile.execute.exclusive import Exclusive
from autocompile.execute.executor import Ended, Event, Job, Told
from autocompile.execute.heard import Heard
from autocompile.execute.memory import default_jobs, usable_cores
from autocompile.execute.starter import ProcessStarter
from autocompile.execute.trees import kill_tree, pause, resume, tree_memory_bytes
from autocompile.request import Isolation

_DUMP_GRACE_S = 1.0  # to write its stacks before it is killed
_MOST_THREADS = 32  # torch's own limit of compile workers
_POLL_S = 0.5  # how often the memory of trials is read
_BIRTH_S = 5.0  # for a supervisor to start its worker


class LocalExecutor:
    """Runs trials here, at most ``jobs`` at once, whose environments spread them over ``gpus``.

    ``share``: as of a :class:`ProcessStarter`.
    """

    def __init__(
        self,
        isolation: Isolation = "auto",
        jobs: int | None = None,
        gpus: int = 1,
        share: str = "",
    ) -> None:
        if jobs is not None and jobs < 1:
            raise UsageError(f"jobs must be at least 1, not {jobs}", hint="--jobs 1")
        self._isolation, self._share, self._jobs_given = (
            isolation,
            share,
            jobs is not None,
        )
        self._events: list[Event] = []
        self._selector = selectors.DefaultSelector()
        self._starters = dict[str, ProcessStarter]()  # by interpreter
        self._starter(None)  # refuses a wrong isolation
        self.slots = default_jobs() if jobs is None else jobs
        self.lanes = 1
        self._children: dict[int, Child] = {}
        self._heard: dict[int, Heard] = {}  # what each of them says
        self._queue: deque[Job] = deque()
        self._look_at, self._is_called, self._gpus = 0.0, False, gpus
        self._exclusive = Exclusive(
            self._hold, self._release, self._grant, self._is_quiet
        )

    def compile_threads(self, alone: bool) -> int:
        """As many as torch takes by itself for a job alone, else its share of the cores."""
        cores = usable_cores()
        return min(_MOST_THREADS, cores) if alone else max(1, cores // self.slots)

    def start(self, job: Job) -> None:
        """Start a trial, or queue it until it can be forked and no trial has exclusive use."""
        starter, child = self._starter(job.python), None
        try:
            alone = not self._children
            if not self._exclusive.taken and starter.is_ready(job, alone):
                child = starter.start(job)
        except OSError as error:
            self._report(Ended(job.number, never_started(error)))
            return
        if child is None:
            self._queue.append(job)
            return
        for other in self._children.values():
            other.company = child.company = True
        self._children[job.number] = child
        self._heard[job.number] = Heard(
            child, starter, self._exclusive, self._report, self._make_room
        )
        self._exclusive.enter(job.number)
        for descriptor in (child.pipes.results, child.pipes.output, child.pidfd):
            if descriptor is not None:
                self._selector.register(descriptor, selectors.EVENT_READ, child)

    def wait(self, timeout_s: float) -> list[Event]:
        """Wait until a trial sends something, ends, or passes a deadline."""
        until, self._is_called = time.monotonic() + timeout_s, False
        while not (self._events or self._is_called) and (self._children or self._queue):
            if (left := until - time.monotonic()) <= 0:
                break
            sleep_s = min(left, _POLL_S, *(c.left_s() for c in self._children.values()))
            for key, _ in self._selector.select(max(0.0, sleep_s)):
                if callable(key.data):
                    key.data()
                elif key.fd == key.data.pidfd:
                    key.data.gone = True
                else:
                    self._read(key.data, key.fd)
            self._exclusive.advance()
            self._look_after_all()
            for _ in range(len(self._queue)):
                self.start(self._queue.popleft())
        events, self._events = self._events, []
        return events

    def cancel(self, number: int) -> None:
        """Kill a trial; it ends as ``interrupted``, even if Ctrl-C hit before it was registered."""
        queued = [job for job in self._queue if job.number == number]
        self._queue = deque(job for job in self._queue if job.number != number)
        if child := self._children.get(number):
            self._kill(child, "interrupted")
        elif not any(isinstance(e, Ended) and e.number == number for e in self._events):
            steps = [self._starter(job.python).step for job in queued if job.builds]
            self._report(Ended(number, stopped_early(*steps)))

    def listen(self, descriptor: int) -> None:
        """Have :meth:`wait` return when a descriptor is readable."""

        def call() -> None:
            self._is_called = True

        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def close(self) -> None:
        self._queue.clear()
        try:
            for child in list(self._children.values()):
                self._kill(child, "interrupted")
                self._finish(child)
        finally:
            for starter in self._starters.values():
                starter.close()
            self._selector.close()

    def _starter(self, python: str | None) -> ProcessStarter:
        python = python or sys.executable
        if python not in self._starters:
            made = ProcessStarter(
                python, self._isolation, self._tell, self._selector, self._share
            )
            self._starters[python] = made
        return self._starters[python]

    def _report(self, event: Event) -> None:
        self._events.append(event)

    def _tell(self, text: str) -> None:
        self._report(Told(text))

    def _is_quiet(self) -> bool:
        """Whether no fork server imports or compiles something."""
        return not any(starter.is_busy for starter in self._starters.values())

    def _read(self, child: Child, descriptor: int) -> bool:
        """Read what a pipe holds now; False if that is nothing."""
        if descriptor not in self._selector.get_map():
            return False  # its trial ended earlier in this round
        try:
            data = os.read(descriptor, 2**20)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(descriptor)
            # Only the trial's own processes hold the other end.
            child.gone = child.gone or descriptor == child.pipes.results
        elif descriptor == child.pipes.output:
            child.take_output(data)
        elif not self._heard[child.job.number](data):
            self._kill(child, None)
        return bool(data)

    def _make_room(self, trials: int) -> None:
        """Run no more trials at once than find memory, unless the user gave a number."""
        if not self._jobs_given:
            self.slots = max(1, min(self.slots, self._gpus * trials))

    def _hold(self, numbers: list[int]) -> None:
        """Stop these trials and their clocks."""
        children = [self._children[n] for n in numbers if n in self._children]
        for child in children:
            self._await_birth(child)
            child.clock.hold()
        groups = [group for child in children for group in child.groups]
        stopped = pause([child.supervisor for child in children], groups)
        for child in children:
            child.stopped = stopped[child.supervisor]

    def _await_birth(self, child: Child) -> None:
        """Wait for the worker's pid: without it, the worker cannot be stopped."""
        deadline = time.monotonic() + _BIRTH_S
        while child.worker is None and not child.gone and time.monotonic() < deadline:
            reports = select.poll()  # select() takes no descriptor above 1023
            reports.register(child.pipes.results, select.POLLIN)
            if reports.poll(1000 * _BIRTH_S):
                self._read(child, child.pipes.results)

    def _release(self, numbers: list[int]) -> None:
        """Let these trials and their clocks go on."""
        for child in [self._children[n] for n in numbers if n in self._children]:
            resume(child.stopped, child.groups)
            child.stopped = []
            child.clock.go()

    def _grant(self, number: int) -> None:
        """Tell a trial that all others are stopped."""
        child = self._children[number]
        child.clock.go()
        with contextlib.suppress(OSError):  # it has exited; its end is read later
            os.write(child.pipes.control, b"!")

    def _look_after_all(self) -> None:
        began, held = time.monotonic(), dict[int, int]()
        children = list(self._children.values())
        if began >= self._look_at:
            held = tree_memory_bytes(
                [c.supervisor for c in children if c.job.memory_limit_bytes]
            )
            # Reading many process trees is slow: limit it to one percent of a core.
            self._look_at = began + max(_POLL_S, 100 * (time.monotonic() - began))
        for child in children:
            if child.gone or (
                child.process is not None and child.process.poll() is not None
            ):
                self._finish(child)
            else:
                self._look_after(child, held.get(child.supervisor, 0))

    def _look_after(self, child: Child, held_bytes: int) -> None:
        """Enforce the memory limit and the deadlines of a trial."""
        if held_bytes > (child.job.memory_limit_bytes or float("inf")):
            self._kill(child, "memory")
        elif child.left_s() > 0:
            return
        elif (
            child.kill_at is None and child.result is None and child.worker is not None
        ):
            in_step = child.clock.left(child.job.allowed_s(child.clock.step), None) <= 0
            child.killed_for = "timeout" if in_step else "total"
            child.kill_at = time.monotonic() + _DUMP_GRACE_S
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.worker, signal.SIGUSR1)  # faulthandler writes every stack
        else:
            self._kill(child, child.killed_for or "timeout")

    def _kill(self, child: Child, why: KilledFor | None) -> None:
        child.killed_for = child.killed_for or why
        if not kill_tree(None if child.gone else child.supervisor, child.marker):
            # unkillable (uninterruptible sleep): abandon it
            child.gone = child.lost = True

    def _finish(self, child: Child) -> None:
        """Kill what is left of a trial, read its remaining output and report how it ended."""
        if not child.lost:
            kill_tree(None, child.marker)
            if child.process is not None:
                child.process.wait()
        registered = self._selector.get_map()
        for descriptor in (child.pipes.results, child.pipes.output):
            while descriptor in registered and self._read(child, descriptor):
                pass
            if descriptor in registered:
                self._selector.unregister(descriptor)
        # So that Ctrl-C cannot repeat what follows.
        del self._children[child.job.number], self._heard[child.job.number]
        try:
            if child.pidfd is not None:
                self._selector.unregister(child.pidfd)
            child.clock.go()
            child.clock.enter(child.clock.step)
            self._report(Ended(child.job.number, ending_of(child)))
            child.close()
        finally:
            self._exclusive.leave(child.job.number)
