"""The study of one phase: Optuna asks, trials answer, and no failure stops it.

The record on disk is the truth; Optuna is told after it is there.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autocompile.calm import Calm, calmness
from autocompile.config import DEFAULT_INDUCTOR
from autocompile.execute.executor import Ending, Executor, Job
from autocompile.execute.job import Workshop, adaptive_timeout_s
from autocompile.record import Outcome, Record
from autocompile.search.answers import answer, known_codes, of_twin
from autocompile.search.crew import Crew, put_first_log_aside
from autocompile.search.ledger import Ledger
from autocompile.search.observer import Observer
from autocompile.search.records import to_record
from autocompile.search.sampler import Effects, next_setting
from autocompile.search.space import Setting, Space

__all__ = ["Budget", "Interrupted", "PhaseStudy"]

_CACHES_KEPT = 8  # compiler caches of each batch size: as many as it seldom has finalists


class Interrupted(Exception):
    """The user pressed Ctrl-C; what was running has been ended and recorded."""


@dataclass
class Budget:
    """How much one phase may use.

    Attributes:
        until: ``time.monotonic()`` at which no further trial starts; None: no end.
        trials: how many trials may have a process of their own; None: no end.
    """

    until: float | None = None
    trials: int | None = None

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return self.until is not None and time.monotonic() >= self.until

    def spent(self, trials: int) -> bool:
        """Whether nothing more may start."""
        return self.is_late or (self.trials is not None and trials >= self.trials)


@dataclass
class PhaseStudy:
    """Tries the settings of one phase until none is left or the budget is spent.

    Attributes:
        space: the settings.
        workshop: makes jobs.
        executor: runs them.
        observer: is told of everything.
        limits: of a measurement: ``half_width``, ``max_rounds``, ``max_s``.
        objective: ``throughput`` or ``latency``.
        calls_per_update: of a batch size: how many calls lie between two changes of the weights;
            None: not known, or they stay.
        database: the run's own file, or the URL of an Optuna storage.
        records: of this phase, of earlier sessions too.
        others: of other phases; they too tell what pace is usual here.
    """

    space: Space
    workshop: Workshop
    executor: Executor
    observer: Observer
    limits: Mapping[str, float]
    objective: str
    database: Path | str
    study_name: str
    calls_per_update: Callable[[int | None], int | None] = lambda _: None
    records: list[Record] = field(default_factory=list)
    others: Sequence[Record] = ()

    def __post_init__(self) -> None:
        self._effects = Effects()
        self._known: dict[Setting, Record] = {}
        self._processes = 0
        self._picked: Setting | None = None
        self._running: dict[int, Setting] = {}
        self._again: deque[tuple[int, Ending]] = deque()
        self._first_ends: dict[int, Ending] = {}
        every = (*self.space.settings, *self.space.unusable)
        self._left: dict[Setting, None] = dict.fromkeys(every)
        for record in self.records:
            self._learn(record)
        self._processes = sum(r.wall_s > 0 for r in self._known.values())

    def calmness(self) -> dict[int, Calm]:
        """How calm each trial was that timed something, by all that the run knows by now."""
        return calmness((*self.others, *self.records))

    def run(self, budget: Budget) -> None:
        """Try settings, as many at once as the executor takes.

        Raises:
            Interrupted: after Ctrl-C.
            RunError: the run's folder or the user's storage cannot be used.
        """
        where, warn = (self.study_name, self.database), self.observer.warning
        ledger = Ledger(self.space, self.objective, *where, self._pick, warn)
        with Crew(self.executor, self.observer) as crew:
            listed = {*self.space.settings, *self.space.unusable}
            ledger.restore(  # an older autocompile may have tried what is not listed now
                [
                    r
                    for r in self.records
                    if r.role == "search" and Setting(r.config, r.batch_size) in listed
                ]
            )
            while True:
                self._fill(crew, ledger, budget)
                if not crew.size:
                    break
                number, ending = crew.next()
                setting = self._running.pop(number)
                if self._deserves_another_try(number, ending):
                    self._running[number] = setting
                    self._again.append((number, ending))
                    continue
                self._keep(ledger, self._concluded(number, setting, ending))
            for number, first in self._again:
                self._keep(ledger, self._not_repeated(number, first, crew.interrupted))
        if crew.interrupted:
            raise Interrupted

    def _fill(self, crew: Crew, ledger: Ledger, budget: Budget) -> None:
        """Start what may start now; what needs no process is answered on the way."""
        if self._again:
            # With nobody beside it: that is half of what its second try is about.
            if not crew.size and crew.has_room and not budget.is_late:
                number, first = self._again.popleft()
                self._first_ends[number] = first
                crew.start(self._job(number, self._running[number], fresh=True))
            return
        if any(number in self._first_ends for number in self._running):
            return
        while crew.has_room and self._left and not budget.spent(self._processes):
            running, leaders = self._running.values(), self._leaders()
            self._picked = next_setting(self.space, self._left, running, self._effects, leaders)
            if self._picked is None:
                return
            setting = ledger.ask()
            del self._left[setting]
            number = self.workshop.next_number()
            calls = self.calls_per_update(setting.batch_size)
            record = answer(number, setting, self.space, self._known, calls)
            if record is not None:
                self._keep(ledger, record)
                continue
            self._processes += 1
            self._running[number] = setting
            job = self._job(number, setting)
            self.observer.started(number, setting.config, setting.batch_size, "search")
            crew.start(job)

    def _leaders(self) -> list[Setting]:
        """The fastest so far of each batch size."""
        best: dict[int | None, tuple[float, Setting]] = {}
        for setting, record in self._known.items():
            if record.ok and record.measurement and not setting.config.is_eager:
                found = record.measurement.speedup.value, setting
                best[setting.batch_size] = max(
                    found, best.get(setting.batch_size, found), key=lambda pair: pair[0]
                )
        return [setting for _, setting in best.values()]

    def _pick(self) -> Setting:
        assert self._picked is not None  # _fill asks only when there is one
        return self._picked

    def _job(self, number: int, setting: Setting, fresh: bool = False) -> Job:
        request = {
            "kind": "trial",
            "phase": self.space.phase,
            "config": setting.config.to_dict(),
            "batch_size": setting.batch_size,
            "limits": dict(self.limits),
            "calls_per_update": self.calls_per_update(setting.batch_size),
            "known_codes": known_codes(setting, self._known),
        }
        config = setting.config
        seen = [
            r.step_s.get("compile", 0.0)
            for r in self._known.values()
            if r.ok
            and r.duplicate_of is None
            and (r.config.backend, r.config.mode) == (config.backend, config.mode)
        ]
        timeout_s = None if fresh else adaptive_timeout_s(self.workshop.timeout_s, seen)
        return self.workshop.job(
            number,
            request,
            compile_timeout_s=timeout_s,
            fresh=fresh,
            alone=fresh,
            environment=setting.config.environment,
        )

    def _deserves_another_try(self, number: int, ending: Ending) -> bool:
        """A failure that neighbours or forking may have caused; once, alone, all afresh."""
        if not ending.doubts or number in self._first_ends:
            return False
        put_first_log_aside(self.workshop.folder.trial(number))
        return True

    def _concluded(self, number: int, setting: Setting, ending: Ending) -> Record:
        ending = dataclasses.replace(ending, first=self._first_ends.pop(number, None))
        record = to_record(number, self.space.phase, setting, ending)
        if record.outcome is Outcome.OK and record.measurement is None:
            record = of_twin(record, ending.payload.get("same_code_as"), self._known)
        if not record.ok or setting.config.is_eager:
            self.workshop.drop_cache(number)
        if record.ok and setting.config.is_baseline and record.measurement:
            interval = record.measurement.speedup
            self.observer.noise_floor(max(interval.high - 1, 1 - interval.low))
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

    def _keep(self, ledger: Ledger, record: Record) -> None:
        """The record is on disk before Optuna hears of it."""
        self.workshop.folder.save(record)
        self.records.append(record)
        self._learn(record)
        ledger.tell(record)
        self._drop_caches_that_cannot_win(record)
        self.observer.ended(record, len(self._left) + len(self._running))

    def _learn(self, record: Record) -> None:
        """A setting that was interrupted has no result: it is still to be tried."""
        self.workshop.learn_pace(record)
        if record.role != "search" or record.outcome is Outcome.INTERRUPTED:
            return
        setting = Setting(record.config, record.batch_size)
        self._left.pop(setting, None)
        self._known[setting] = record
        # A failure that no process has shown is about this one setting, whatever it shares.
        if record.ok or record.wall_s > 0:
            self._effects.add(record)

    def _drop_caches_that_cannot_win(self, record: Record) -> None:
        """Disk is for those that may be measured again; they need their compiler cache."""
        same = [
            r
            for r in self._known.values()
            if r.batch_size == record.batch_size
            and r.duplicate_of is None
            and r.ok
            and not r.config.is_eager
            and r.config != DEFAULT_INDUCTOR
            and self.workshop.has_cache(r.number)
        ]
        if len(same) > _CACHES_KEPT:
            slowest = min(same, key=lambda r: r.measurement.speedup.high if r.measurement else 0)
            self.workshop.drop_cache(slowest.number)
