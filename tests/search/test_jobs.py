"""Jobs side by side: which of them are ended, and which are tried a second time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fakes import FakeExecutor, failed, measured

from autocompile.execute.executor import Ended, Ending, Event, Job
from autocompile.progress import Progress
from autocompile.search.jobs import Jobs
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


class Flaky(FakeExecutor):
    """Every first try fails as a fork may, until the clock says that the time is over."""

    def __init__(self, first: Ending) -> None:
        super().__init__(lambda request: measured(1.0), slots=3)
        self.started: list[tuple[int, bool, int]] = []
        self._first, self._alive = first, 0

    def start(self, job: Job) -> None:
        self.started.append((job.number, job.fresh, self._alive))
        self._alive += 1
        ending = measured(1.0) if job.fresh else self._first
        self._events.append(Ended(job.number, ending))

    def wait(self, timeout_s: float) -> list[Event]:
        events = super().wait(timeout_s)
        self._alive -= len(events)
        return events


DOUBTFUL = dataclasses.replace(failed("crashed"), doubts=("forked",))


def ended(jobs: Jobs, count: int) -> dict[int, Ending]:
    return dict(jobs.next() for _ in range(count))


def test_second_tries_run_one_by_one_when_nothing_else_does() -> None:
    executor = Flaky(DOUBTFUL)
    with Jobs(executor, Progress()) as jobs:
        for number in (1, 2, 3):
            jobs.start(job(number))
        found = ended(jobs, 1)
        assert not jobs.has_room, "others would have company"
        found |= ended(jobs, 2)
        assert jobs.has_room and not jobs.size
    assert executor.started[3:] == [(1, True, 0), (2, True, 0), (3, True, 0)]
    assert all(ending.outcome is Outcome.OK for ending in found.values())
    assert all(e.first and e.first.outcome is Outcome.CRASHED for e in found.values())


def test_what_the_job_itself_has_caused_is_not_tried_again() -> None:
    executor = Flaky(failed("crashed"))
    with Jobs(executor, Progress()) as jobs:
        jobs.start(job(1))
        assert ended(jobs, 1)[1].outcome is Outcome.CRASHED
    assert len(executor.started) == 1


def test_where_the_time_is_over_the_first_failure_stands() -> None:
    over, executor = False, Flaky(DOUBTFUL)
    with Jobs(executor, Progress(), lambda: over) as jobs:
        jobs.start(job(1))
        executor._events[0] = Ended(1, DOUBTFUL)
        jobs._wait()
        over = True
        ending = ended(jobs, 1)[1]
    assert (ending.outcome, ending.first) == (Outcome.CRASHED, None)


def test_a_second_try_is_made_by_whoever_knows_how() -> None:
    executor, again = Flaky(DOUBTFUL), []

    def make(first: Job) -> Job:
        again.append(first.number)
        return dataclasses.replace(first, fresh=True, timeout_s=99.0)

    with Jobs(executor, Progress(), again=make) as jobs:
        jobs.start(job(1))
        ended(jobs, 1)
    assert again == [1]


def test_the_log_of_the_first_try_is_kept(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("first")
    with Jobs(Flaky(DOUBTFUL), Progress()) as jobs:
        jobs.start(Job(1, tmp_path, 10.0))
        ended(jobs, 1)
    assert (tmp_path / "log.first.txt").read_text() == "first"
