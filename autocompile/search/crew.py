"""Crew: runs jobs side by side, passes on what happens, and ends them at Ctrl-C."""

from __future__ import annotations

from autocompile.execute.executor import Ended, Ending, Executor, Job, Stepped, Told
from autocompile.search.observer import Observer

__all__ = ["Crew", "run_job"]


class Crew:
    """Jobs of one executor.

    The first Ctrl-C ends what runs, and its endings still arrive; the second one is raised.

    Args:
        executor: runs the jobs.
        observer: is told of steps.

    Attributes:
        interrupted: Ctrl-C has been pressed; nothing should be started any more.
    """

    def __init__(self, executor: Executor, observer: Observer) -> None:
        self._executor, self._observer = executor, observer
        self._running: set[int] = set()
        self._ended: list[tuple[int, Ending]] = []
        self.interrupted = False

    @property
    def size(self) -> int:
        """How many jobs have been started and not been handed out yet."""
        return len(self._running) + len(self._ended)

    @property
    def has_room(self) -> bool:
        """Whether another job may start."""
        return not self.interrupted and len(self._running) < self._executor.slots

    def start(self, job: Job) -> None:
        """Start a job."""
        try:
            self._running.add(job.number)
            self._executor.start(job)
        except KeyboardInterrupt:
            self._interrupt()

    def next(self) -> tuple[int, Ending]:
        """Sleep until a job ends: its number and how.

        Raises:
            KeyboardInterrupt: the second Ctrl-C.
        """
        while not self._ended:
            try:
                for event in self._executor.wait(1.0):
                    if isinstance(event, Stepped):
                        self._observer.step(event.number, event.step)
                    elif isinstance(event, Told):
                        self._observer.warning(event.text)
                    elif isinstance(event, Ended):
                        self._running.discard(event.number)
                        self._ended.append((event.number, event.ending))
                self._observer.tick()
            except KeyboardInterrupt:
                self._interrupt()
        return self._ended.pop(0)

    def _interrupt(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        for number in list(self._running):
            self._executor.cancel(number)


def run_job(executor: Executor, job: Job, observer: Observer) -> tuple[Ending, bool]:
    """Run one job to its end.

    Returns:
        How it ended, and whether the user pressed Ctrl-C meanwhile.
    """
    crew = Crew(executor, observer)
    crew.start(job)
    _, ending = crew.next()
    return ending, crew.interrupted
