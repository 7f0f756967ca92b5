"""Jobs side by side: which of them an interruption ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from fakes import FakeExecutor, measured

from autocompile.execute.executor import Job
from autocompile.progress import Progress
from autocompile.search.jobs import Jobs, without_interrupts
from autocompile.store.record import Outcome


class Endless(FakeExecutor):
    """No job ends by itself."""

    def start(self, job: Job) -> None:
        pass


def job(number: int) -> Job:
    return Job(number, Path("."), 10.0)


def test_what_starts_after_a_cut_is_ended_by_the_next_one() -> None:
    over = False
    executor = Endless(lambda request: measured(1.0))
    jobs = Jobs(executor, Progress(), lambda: over)
    for number in (1, 2):
        jobs.start(job(number))
        over = True
        ended, ending = jobs.next()
        assert (ended, ending.outcome) == (number, Outcome.INTERRUPTED)
        over = False


def test_ctrl_c_does_not_cut_off_what_takes_a_moment() -> None:
    before = signal.getsignal(signal.SIGINT)
    with without_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
