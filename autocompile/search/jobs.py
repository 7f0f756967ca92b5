"""Runs jobs in parallel within a budget of time, reports their events and handles Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autocompile.execute.executor import Ended, Ending, Executor, Job, Stepped, Told
from autocompile.progress import Progress

_GLANCE_S = 0.25  # maximum delay until Ctrl-C is handled
_TICK_S = 1.0
_FOR_RACES = 0.4  # largest share reserved for races
_FOR_EXPORTS = 0.05  # share reserved for running exported code after the races
_REPORT_S = 1.0
_MOST = 1.1
_GRACE = 0.03  # share by which the last search trial may delay the races


class Budget:
    """Remaining time of a run."""

    def __init__(
        self,
        total_s: float | None,  # of the whole run; None: unlimited
        trials: int
        | None = None,  # most that start a process for the search; None: unlimited
        began: float | None = None,  # by ``clock``
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_s, self.trials, self._clock = total_s, trials, clock
        self._began = clock() if began is None else began
        self._most_s = math.inf if total_s is None else total_s
        self._usable = 1 - _FOR_EXPORTS

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        """Seconds until the report or, before :meth:`release`, until exported code must run."""
        return self._usable * self._most_s - _REPORT_S - self.spent_s

    def release(self) -> None:
        self._usable = 1.0

    def for_search_s(self, races_s: float) -> float:
        """Seconds left for the search if the races take ``races_s``."""
        return self.left_s - min(_FOR_RACES * self._most_s, races_s)

    def is_over(self, races_s: float | None = None) -> bool:
        """Whether running jobs must be ended, to leave ``races_s`` for the races or at 110 %."""
        late = -_GRACE * self._most_s
        is_late = races_s is not None and self.for_search_s(races_s) < late
        return is_late or self.spent_s > _MOST * self._most_s


class Jobs:
    """The running jobs of one executor; they are ended once ``is_over``.

    The first Ctrl-C ends running jobs, which still report their endings; the second is raised.
    Inside the context, a signal handler records the first instead of raising KeyboardInterrupt,
    which could hit anywhere and is ignored in destructors and weak reference callbacks. It is
    raised at the end of the context.
    """

    def __init__(
        self,
        executor: Executor,
        progress: Progress,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._executor, self._progress, self._is_over = executor, progress, is_over
        self._running: set[int] = set()
        self._ended: list[tuple[int, Ending]] = []
        self.interrupted = self._cancelled = False
        self._handlers: dict[int, Callable[..., Any]] = {}
        self._ticked = 0.0

    def __enter__(self) -> Jobs:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):  # not SIG_IGN or SIG_DFL
                    self._handlers[number] = handler
                    signal.signal(number, self._interrupt)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self.interrupted and error is None:
            raise KeyboardInterrupt

    @property
    def size(self) -> int:
        return len(self._running) + len(self._ended)

    @property
    def has_room(self) -> bool:
        return not self.interrupted and len(self._running) < self._executor.slots

    def expect(self, job: Job) -> Job:
        """Count a job as running, which the executor is about to start."""
        self._running.add(job.number)
        self._cancelled = False  # the new job is not cancelled yet
        return job

    def next(self) -> tuple[int, Ending]:
        """Wait until a job ends; returns its number and how it ended."""
        while not self._ended:
            try:
                self._wait()
            except KeyboardInterrupt:
                self._interrupt()
        return self._ended.pop(0)

    def _wait(self) -> None:
        if (self.interrupted or self._is_over()) and not self._cancelled:
            self._cancelled = True
            for number in list(self._running):
                self._executor.cancel(number)
        for event in self._executor.wait(_GLANCE_S):
            if isinstance(event, Stepped):
                self._progress.step(event.number, event.step)
            elif isinstance(event, Told):
                self._progress.warning(event.text)
            elif isinstance(event, Ended):
                self._running.discard(event.number)
                self._ended.append((event.number, event.ending))
        if time.monotonic() - self._ticked >= _TICK_S:
            self._ticked = time.monotonic()
            self._progress.tick()

    def _interrupt(self, *_: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C inside the context."""
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGINT, handler)


def run_job(executor: Executor, job: Job, progress: Progress) -> Ending:
    """Run one job alone; what forking may have caused is tried again once, in an interpreter."""
    with Jobs(executor, progress) as jobs:
        executor.start(jobs.expect(job))
        _, ending = jobs.next()
        if ending.doubts and not job.fresh and not jobs.interrupted:
            put_first_log_aside(job.folder)
            executor.start(jobs.expect(dataclasses.replace(job, fresh=True)))
            _, again = jobs.next()
            ending = dataclasses.replace(again, first=ending)
    return ending


def put_first_log_aside(folder: Path) -> None:
    """Rename the log of a trial's first try, so that the second does not overwrite it."""
    log = folder / "log.txt"
    if log.exists():
        log.replace(log.with_name("log.first.txt"))
