"""Runs jobs side by side, reports their events, tries some a second time and heeds Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autocompile.execute.executor import Ended, Ending, Executor, Job, Stepped, Told
from autocompile.progress import Progress
from autocompile.store.record import AT_WORK, Outcome

_GLANCE_S = 0.25  # maximum delay until Ctrl-C is handled
_TICK_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Counts Ctrl-C and SIGTERM inside its context, in place of raising KeyboardInterrupt.

    That could hit anywhere, and is ignored in destructors and weak reference callbacks. The first
    asks for an end, which whoever waits for jobs looks at. A second one is raised, but only in
    :meth:`impatient`: what a run still writes is never cut off.
    """

    def __init__(self) -> None:
        self._count, self._may_raise = 0, False
        self._handlers: dict[int, Callable[..., Any]] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):  # not SIG_IGN or SIG_DFL
                    self._handlers[number] = handler
                    signal.signal(number, self.note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    @property
    def seen(self) -> bool:
        """Whether the end was asked for."""
        return self._count > 0

    def note(self, *_: object) -> None:
        """Count one; also the handler of the signals."""
        self._count += 1
        if self._count > 1 and self._may_raise:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """Inside, a second Ctrl-C is raised: to end jobs may take long."""
        self._may_raise = True
        try:
            yield
        finally:
            self._may_raise = False


class Jobs:
    """The running jobs of one executor.

    They are ended once ``is_over``, and by the first Ctrl-C; they still report their endings.

    A job that failed in a way that forking or other jobs may have caused has a second try: once
    nothing else runs, alone and in a fresh interpreter. Nothing new begins until it is over. If it
    cannot begin before the time is over, the first failure stands; after Ctrl-C the job counts as
    interrupted.

    Args:
        is_over: whether the time of what runs is up; called about four times a second.
        again: makes the job of a second try; None: as the first, in a fresh interpreter.
        interrupts: of the whole run; None: of these jobs, and KeyboardInterrupt is raised at the
            end of the context.
    """

    def __init__(
        self,
        executor: Executor,
        progress: Progress,
        is_over: Callable[[], bool] = lambda: False,
        again: Callable[[Job], Job] | None = None,
        interrupts: Interrupts | None = None,
    ) -> None:
        self._executor, self._progress, self._is_over = executor, progress, is_over
        self._again = again or (lambda job: dataclasses.replace(job, fresh=True))
        self._own = Interrupts() if interrupts is None else None
        self._interrupts = interrupts or self._own or Interrupts()
        self._running: dict[int, Job] = {}
        self._first: dict[int, tuple[Job, Ending]] = {}  # of jobs that are tried again
        self._to_retry: deque[int] = deque()
        self._ended: list[tuple[int, Ending]] = []
        self._cancelled = False
        self._ticked = 0.0

    def __enter__(self) -> Jobs:
        if self._own:
            self._own.__enter__()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._own:
            self._own.__exit__()
            if self._own.seen and error is None:
                raise KeyboardInterrupt

    @property
    def interrupted(self) -> bool:
        return self._interrupts.seen

    @property
    def size(self) -> int:
        """How many have not been returned by :meth:`next`."""
        return len(self._running) + len(self._to_retry) + len(self._ended)

    @property
    def has_room(self) -> bool:
        """Whether a job may start now: none beside or before a second try."""
        is_free = not self.interrupted and not self._first
        return is_free and len(self._running) < self._executor.slots

    def start(self, job: Job) -> None:
        self._running[job.number] = job
        self._cancelled = False  # the new job is not cancelled yet
        self._executor.start(job)

    def next(self) -> tuple[int, Ending]:
        """Wait until a job has ended, second try included; its number and how it ended."""
        while not self._ended:
            try:
                with self._interrupts.impatient():
                    self._retry()
                    self._wait()
            except KeyboardInterrupt:
                with self._interrupts.impatient():
                    self._interrupts.note()
        return self._ended.pop(0)

    def _retry(self) -> None:
        """Start a second try once nothing else runs, or say that there is no time for it."""
        while self._to_retry and not self._running:
            number = self._to_retry.popleft()
            job, first = self._first[number]
            if not self.interrupted and not self._is_over():
                put_first_log_aside(job.folder)
                self.start(self._again(job))
                return
            del self._first[number]
            if self.interrupted:
                ended = f"the first ended with {first.outcome.value} ({first.message})"
                first = dataclasses.replace(
                    first,
                    outcome=Outcome.INTERRUPTED,
                    message=f"stopped before its second try; {ended}",
                )
            self._ended.append((number, first))

    def _wait(self) -> None:
        if (self.interrupted or self._is_over()) and not self._cancelled:
            self._cancelled = True
            for number in list(self._running):
                self._executor.cancel(number)
        for event in self._executor.wait(_GLANCE_S) if self._running else ():
            if isinstance(event, Stepped):
                self._progress.step(event.number, event.step)
            elif isinstance(event, Told):
                self._progress.warning(event.text)
            elif isinstance(event, Ended):
                self._end(event.number, event.ending)
        if time.monotonic() - self._ticked >= _TICK_S:
            self._ticked = time.monotonic()
            self._progress.tick()

    def _end(self, number: int, ending: Ending) -> None:
        job = self._running.pop(number, None)
        if number in self._first:
            _, first = self._first.pop(number)
            self._ended.append((number, dataclasses.replace(ending, first=first)))
        elif job and ending.doubts:
            self._first[number] = job, ending
            self._to_retry.append(number)
        else:
            self._ended.append((number, ending))


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM inside the context."""
    with Interrupts():
        yield


def run_job(
    executor: Executor,
    job: Job,
    progress: Progress,
    is_over: Callable[[], bool] = lambda: False,
) -> Ending:
    """Run one job alone; what forking may have caused is tried again once, in an interpreter.

    It is ended as interrupted once ``is_over``.
    """
    with Jobs(executor, progress, is_over) as jobs:
        jobs.start(job)
        _, ending = jobs.next()
    return ending


def put_first_log_aside(folder: Path) -> None:
    """Rename the log of a trial's first try, so that the second does not overwrite it."""
    log = folder / "log.txt"
    if log.exists():
        log.replace(log.with_name("log.first.txt"))
    # What was at work in the first try says nothing of the second.
    (folder / AT_WORK).unlink(missing_ok=True)
