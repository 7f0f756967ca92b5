"""The search of a run: Optuna asks, trials answer, and no failure stops it.

All phases and batch sizes are one study. The record is on disk before Optuna gets
its result.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from autocompile.execute.executor import Ending, Executor, Job
from autocompile.execute.job import JobFactory, adaptive_timeout_s
from autocompile.protocol.requests import TimingLimits, TrialRequest
from autocompile.protocol.results import TrialResult
from autocompile.search.budget import Budget
from autocompile.search.jobs import Jobs, put_first_log_aside
from autocompile.search.observer import Observer
from autocompile.search.optuna_study import OptunaStudy
from autocompile.search.records import to_record
from autocompile.search.reuse import answer, known_codes, of_twin
from autocompile.search.sampler import FiniteSampler, PortfolioSampler
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.space.space import Setting, Space
from autocompile.store.record import Outcome, Record

__all__ = ["Interrupted", "Study"]

_CACHES_KEPT = 8  # compiler caches of each phase and batch size: as many as may be raced
_EAGER = TimingLimits(front_s=0.5)  # of eager mode against itself, which is no rival
_DEAR = 0.2  # of the budget: a compile that takes so much leaves too little for others
_USEFUL = 8  # settings, in how many the best is nearly always found


class Interrupted(Exception):
    """The user pressed Ctrl-C; what was running has been ended and recorded."""


@dataclass
class Study:
    """Tries settings until none is worth trying or the budget is spent.

    Attributes:
        spaces: the settings of each phase.
        sampler: chooses the next one.
        job_factory: makes jobs.
        executor: runs them.
        observer: receives every event of the run.
        budget: of the whole run.
        is_exhaustive: goes on to the end of the list.
        calls_per_update: of a phase and batch size: how many calls lie between two changes of the
            weights; None: not known, or they stay.
        database: the run's own file, or the URL of an Optuna storage.
        records: of earlier sessions too, searched and raced.
    """

    spaces: Mapping[str, Space]
    sampler: PortfolioSampler | FiniteSampler
    job_factory: JobFactory
    executor: Executor
    observer: Observer
    budget: Budget
    database: Path | str
    study_name: str
    is_exhaustive: bool = False
    calls_per_update: Callable[[str, int | None], int | None] = lambda phase, size: None
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._known: dict[Setting, Record] = {}
        self._processes = 0
        self._races_s = 0.0
        self._running: dict[int, Setting] = {}
        self._again: deque[tuple[int, Ending]] = deque()
        self._first_ends: dict[int, Ending] = {}
        self._warned = False
        for record in self.records:
            self._learn(record)
        self._processes = sum(r.wall_s > 0 for r in self._known.values())
        self._optuna = OptunaStudy(
            self.sampler, self.study_name, self.database, self.observer.warning
        )
        listed = set(self.sampler.settings)  # an older version may have tried others
        searched = [r for r in self.records if r.role == "search"]
        self._optuna.restore([r for r in searched if Setting.of(r) in listed])

    @property
    def is_done(self) -> bool:
        """Whether nothing that is left is worth trying."""
        spent = self.budget.trials is not None and self._processes >= self.budget.trials
        return spent or (self._optuna.left == 0 if self.is_exhaustive else self._optuna.is_done)

    def search(self, races_s: Callable[[], float]) -> None:
        """Try settings, as many at once as the executor takes, as long as time is left.

        Args:
            races_s: how many seconds the races would take that are needed by now.

        Raises:
            Interrupted: after Ctrl-C.
            RunError: the run's folder cannot be used.
        """
        with Jobs(self.executor, self.observer, self._is_over) as jobs:
            while True:
                self._races_s = races_s()
                self._fill(jobs)
                if not jobs.size:
                    break
                number, ending = jobs.next()
                setting = self._running.pop(number)
                if self._deserves_another_try(number, ending):
                    self._running[number] = setting
                    self._again.append((number, ending))
                    continue
                self._keep(self._concluded(number, setting, ending))
            for number, first in self._again:
                self._keep(self._not_repeated(number, first, jobs.interrupted))
            self._again.clear()
        if jobs.interrupted:
            raise Interrupted

    def _is_over(self) -> bool:
        """Whether what still runs is to be ended."""
        return self.budget.is_over() or self.budget.is_over_for_search(self._races_s)

    def _is_late(self) -> bool:
        """Whether what began now would end too late."""
        return self.budget.for_search_s(self._races_s) <= self._started_s()

    def _fill(self, jobs: Jobs) -> None:
        """Start what may start now; what needs no process is answered on the way."""
        if self._again:
            # Alone, since other trials may have caused the first failure.
            if not jobs.size and jobs.has_room and not self._is_late():
                number, first = self._again.popleft()
                self._first_ends[number] = first
                jobs.start(self._job(number, self._running[number], fresh=True))
            return
        if any(number in self._first_ends for number in self._running):
            return
        while jobs.has_room and not self.is_done and not self._is_late():
            setting = self._optuna.ask()
            if setting is None:
                return
            number = self.job_factory.next_number()
            calls = self.calls_per_update(setting.phase, setting.batch_size)
            record = answer(number, setting, self._known, calls)
            if record is not None:
                self._keep(record)
                continue
            self._processes += 1
            self._running[number] = setting
            job = self._job(number, setting)
            self.observer.started(number, setting, "search")
            jobs.start(job)

    def _started_s(self) -> float:
        """About how long what runs, and one more, still takes: they are timed one by one."""
        ended = [r for r in self._known.values() if r.ok and r.wall_s > 0]
        ended = [r for r in ended if not r.config.is_eager] or ended
        if not ended:
            return 0.0
        timed = fmean(sum(r.step_s.get(s, 0.0) for s in ("verify", "measure")) for r in ended)
        return fmean(r.wall_s for r in ended) + timed * len(self._running)

    def _job(self, number: int, setting: Setting, fresh: bool = False) -> Job:
        config, here = setting.config, [r for s, r in self._known.items() if s.cell == setting.cell]
        speeds = [r.measurement.speedup.value for r in here if r.ok and r.measurement]
        request = TrialRequest(
            header=self.job_factory.header,
            number=number,
            phase=setting.phase,
            config=config,
            batch_size=setting.batch_size,
            limits=_EAGER if config.is_plain_eager else TimingLimits(beat=max(speeds, default=0.0)),
            calls_per_update=self.calls_per_update(setting.phase, setting.batch_size),
            known_codes=known_codes(setting, self._known),
        )
        seen = [
            r.step_s.get("compile", 0.0)
            for r in self._known.values()
            if r.ok
            and r.duplicate_of is None
            and r.phase == setting.phase
            and (r.config.backend, r.config.mode) == (config.backend, config.mode)
        ]
        timeout_s = None if fresh else adaptive_timeout_s(self.job_factory.timeout_s, seen)
        return self.job_factory.job(
            request,
            compile_timeout_s=timeout_s,
            fresh=fresh,
            alone=fresh,
            environment=config.environment,
        )

    def _deserves_another_try(self, number: int, ending: Ending) -> bool:
        """Whether other trials or forking may have caused the failure: it is tried again, alone."""
        if not ending.doubts or number in self._first_ends:
            return False
        put_first_log_aside(self.job_factory.folder.trial(number))
        return True

    def _concluded(self, number: int, setting: Setting, ending: Ending) -> Record:
        ending = dataclasses.replace(ending, first=self._first_ends.pop(number, None))
        record = to_record(number, setting.phase, setting, ending)
        if record.outcome is Outcome.OK and record.measurement is None:
            said = TrialResult.read(ending.payload)
            record = of_twin(record, said.same_code_as, self._known)
        return record

    def _not_repeated(self, number: int, first: Ending, interrupted: bool) -> Record:
        """The record of a trial whose second try never began."""
        setting = self._running.pop(number)
        if not interrupted:
            record = self._concluded(number, setting, first)
            note = "not tried again, alone and in a fresh interpreter: the budget was spent"
            return dataclasses.replace(record, notes=(*record.notes, note))
        said = f"{first.outcome.value} ({first.message})"
        what = f"stopped before its second try; the first ended with {said}"
        ending = dataclasses.replace(first, outcome=Outcome.INTERRUPTED, message=what)
        return self._concluded(number, setting, ending)

    def _keep(self, record: Record) -> None:
        """The record is on disk before Optuna hears of it."""
        self.job_factory.folder.save(record)
        self.records.append(record)
        self._learn(record)
        self._optuna.tell(record)
        self._drop_caches_that_cannot_win(record)
        self.observer.ended(record, self._optuna.left + len(self._running))
        self._warn_of_dear_compiles(record)

    def keep_raced(self, record: Record) -> None:
        """Save one side of a race; it is not part of the Optuna study."""
        self.job_factory.folder.save(record)
        self.records.append(record)
        self.observer.ended(record, self._optuna.left)

    def _learn(self, record: Record) -> None:
        """A setting that was interrupted has no result: it is still to be tried."""
        if record.role == "search" and record.outcome is not Outcome.INTERRUPTED:
            self._known[Setting.of(record)] = record

    def _drop_caches_that_cannot_win(self, record: Record) -> None:
        """Disk is for those that may be raced: they run on the cache of their trial."""
        if not record.ok or record.config.is_eager:
            self.job_factory.drop_cache(record.number)
        here = [r for s, r in self._known.items() if s.cell == (record.phase, record.batch_size)]
        same = [
            r
            for r in here
            if r.ok
            and not r.config.is_eager
            and r.config != DEFAULT_INDUCTOR
            and self.job_factory.has_cache(r.number)
        ]
        if len(same) > _CACHES_KEPT:
            slowest = min(same, key=lambda r: r.measurement.speedup.high if r.measurement else 0)
            self.job_factory.drop_cache(slowest.number)

    def _warn_of_dear_compiles(self, record: Record) -> None:
        """After the first compile: how long a search takes that is of use for this model."""
        total_s, compile_s = self.budget.total_s, record.step_s.get("compile", 0.0)
        if self._warned or total_s is None or record.config.is_eager or not compile_s:
            return
        self._warned = True
        if compile_s < _DEAR * total_s:
            return
        minutes = math.ceil(_USEFUL * record.wall_s / self.executor.slots / 0.6 / 60)
        self.observer.warning(
            f"one compile of this model takes {compile_s:.0f} s: a useful search takes about "
            f"{minutes} minutes (--budget {minutes}m); this one has {total_s:.0f} s"
        )
