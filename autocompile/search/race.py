"""The race: finalists, plain torch.compile() and eager mode side by side, in fresh processes.

The best of many single figures is biased upwards, and processes differ by more than the noise
inside one. So the finalists of each phase and batch size are timed again, in sets of fresh
processes, until the order is clear (:mod:`autocompile.estimate.decision`). Only that is reported.

At the end the winner's exported code runs once in a fresh interpreter: a race times settings as
trials apply them, and a user runs what an export says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from autocompile.estimate.candidates import Candidate
from autocompile.estimate.decision import SETS, Decision, decide_all, finalists
from autocompile.estimate.limits import Limits
from autocompile.estimate.stages import STAGES, Stage, lacks_one, needing
from autocompile.execute.executor import Ending
from autocompile.protocol.requests import (
    ExportedCode,
    Side,
    TimingLimits,
    TrialRequest,
)
from autocompile.search.jobs import Jobs
from autocompile.search.records import records_of
from autocompile.search.study import Study
from autocompile.settings.config import Cell
from autocompile.store.record import AT_WORK, EXPORTED, Checks, Outcome, Record

LIMITS = TimingLimits.exactly(rounds=24, max_s=3.0)  # of each set
# Share of a cold compile by Inductor that a warm one takes: 4 to 25 % in nearly all races of
# studies/gpu.
_WARM = 0.25
_FIRST = 2.0  # times as long as expected, a first set may take
_START_S = 6.0  # a new interpreter and the imports that a fork does without


@dataclass
class _Set:
    """One set of a phase and batch size: settings by process, those to start and those running."""

    cell: Cell
    number: int
    size: int
    began: float
    waiting: list[list[Candidate]]
    takes_turns: bool
    later_s: float  # expected of it for checks that no other set makes
    until_s: float  # of the run: before that it is not cut off
    running: dict[int, list[Candidate]] = field(default_factory=dict)


@dataclass
class Race:
    """Times the best of each phase and batch size again, the user's own batch sizes first."""

    study: Study
    limits: Limits
    own_sizes: Mapping[str, int | None]
    _asked: dict[int, TrialRequest] = field(default_factory=dict)  # of those running
    _alone: set[int] = field(default_factory=set)  # failed beside others: run with none
    _given_up: set[Cell] = field(
        default_factory=set
    )  # its race failed outside any setting
    _took_s: dict[Cell, float] = field(default_factory=dict)  # of a set, by side

    def run(self) -> None:
        """Race until every decision is clear or the time is over."""
        sets: list[_Set] = []
        with self.study.jobs(lambda: self._is_over(sets)) as jobs:
            while True:
                while len(sets) < self.study.executor.lanes and not jobs.interrupted:
                    if (chosen := self._next({each.cell for each in sets})) is None:
                        break
                    sets.append(self._begin(*chosen))
                for each in sets:
                    self._start_groups(jobs, each)
                if not jobs.size:
                    return  # nothing is left, or Ctrl-C before it began
                job, ending = jobs.next()
                current = next(each for each in sets if job in each.running)
                self._save(job, current, ending)
                if not current.waiting and not current.running:
                    spent_s = self.study.deadlines.spent_s - current.began
                    # The next set has no later checks; how long they took is estimated.
                    timed_s = max(LIMITS.max_s, spent_s - current.later_s)
                    spent_s = min(spent_s, timed_s)
                    self._took_s[current.cell] = spent_s / (1 + current.size)
                    sets.remove(current)

    def _is_over(self, sets: Sequence[_Set]) -> bool:
        """Whether what runs must be ended: all of a set is lost then.

        A set that began in time may last until the report.
        """
        deadlines = self.study.deadlines
        spent_s = deadlines.spent_s
        return deadlines.is_over() and not any(spent_s < s.until_s for s in sets)

    def _next(
        self, raced: Collection[Cell] = ()
    ) -> tuple[Cell, list[Candidate]] | None:
        """The phase and batch size that is raced next, and who runs; None if nothing is open."""
        decisions = [each for each in self._decisions() if each[0] not in raced]
        for stage in STAGES:
            for cell, decision in decisions:
                # Each phase has a set before another has three: other batch sizes wait for that.
                if stage is lacks_one and not self._is_own(cell):
                    continue
                if runners := self._runners(cell, decision, stage):
                    return cell, runners
        return None

    def _is_own(self, cell: Cell) -> bool:
        """Whether the answer of a phase is about this batch size."""
        phase, batch_size = cell
        return batch_size == self.own_sizes[phase]

    def _runners(self, cell: Cell, decision: Decision, stage: Stage) -> list[Candidate]:
        """The finalists of the next set, or with little time the first of them.

        None if there is no time, or none of those that there is time for needs the set.
        """
        every, needy = finalists(decision), needing(decision, stage)
        deadlines = self.study.deadlines
        left_s = deadlines.races_left_s
        if self._must_be(cell, every):
            left_s = max(left_s, deadlines.longest_left_s / _FIRST)
        for most in (len(every), 2, 1):
            some = every[:most]
            has_time = self._set_s(cell, some) <= left_s
            if has_time and any(c in needy for c in some):
                return some
        return []

    def _must_be(self, cell: Cell, runners: Sequence[Candidate]) -> bool:
        """Whether a set has to be, as an answer is not verified without it, and may move the end."""
        may_move = self.study.compared and self._is_own(cell)
        return bool(may_move) and not any(c.is_verified for c in runners)

    @property
    def finalists(self) -> set[int]:
        """The trials of the settings that a resumed run would race."""
        return {
            c.record.number
            for _, decision in self._decisions()
            for c in finalists(decision)
        }

    @property
    def is_open(self) -> bool:
        return any(decision.open for _, decision in self._decisions())

    def needed_s(self, sets: int = SETS[0]) -> float:
        """Estimated seconds until each phase's answer has so many sets, by default what it needs.

        Where these have been raced it is what one more setting needs, and the best beside it: what
        a search finds then has to be confirmed. Other batch sizes than those that answers are about
        are raced in what time is left: no setting stays untried for them.
        """
        total_s = another_s = 0.0
        for cell, decision in self._decisions():
            if not self._is_own(cell):
                continue
            runners = finalists(decision)
            fewest = min((c.tries for c in runners), default=sets)
            total_s += max(0, sets - fewest) * self._set_s(cell, runners)
            best = (decision.best, decision.best) if decision.is_faster else ()
            another_s = max(another_s, sets * self._set_s(cell, best))
        return max(total_s, another_s)

    def run_exported(self, codes: Mapping[Cell, ExportedCode]) -> None:
        """Verify and time exported code in a fresh interpreter, as far as there is time for it."""
        study = self.study
        done = {r.repeats for r in study.records if r.role == EXPORTED}
        winners = {cell: decision.best for cell, decision in self._decisions()}
        with study.jobs(study.deadlines.is_over) as jobs:
            for cell, code in codes.items():
                winner = winners.get(cell)
                if winner is None or winner.record.number in done or not winner.sets:
                    continue
                # A user's loop around the model is another program: nothing of it is cached.
                is_step = winner.record.config.scope == "step"
                cold_s = winner.record.compile_s or 0.0 if is_step else 0.0
                needed_s = self._set_s(cell, [winner]) + _START_S + cold_s
                if jobs.interrupted or needed_s > study.deadlines.left_s:
                    continue
                self._start(jobs, cell, [winner], exported=code)
                job, ending = jobs.next()
                for record in self._records(job, [winner], ending):
                    if record.outcome is not Outcome.INFRASTRUCTURE:
                        study.save_raced(
                            dataclasses.replace(record, number=job, role=EXPORTED)
                        )

    # What has been decided, and the time that is left ---------------------------------------------

    def _decisions(self) -> list[tuple[Cell, Decision]]:
        """Of each phase and batch size, the user's own first, and of each phase in turn."""
        ranked: list[tuple[int, Cell, Decision]] = []
        for phase, first in self.own_sizes.items():
            mine = (r for r in self.study.records if r.phase == phase)
            decisions = decide_all(mine, self.limits)
            order = sorted(decisions, key=lambda size: (size != first, -(size or 0)))
            ranked += [
                (n, (phase, size), decisions[size]) for n, size in enumerate(order)
            ]
        ranked.sort(key=lambda each: each[0])
        return [(cell, made) for _, cell, made in ranked if cell not in self._given_up]

    def _set_s(self, cell: Cell, runners: Sequence[Candidate]) -> float:
        """About how long a set takes: by the last one, or by the trials of the search."""
        if cell in self._took_s:
            later_s = sum(map(_later_s, runners))
            return self._took_s[cell] * (1 + len(runners)) + later_s
        if not runners:
            return 0.0
        steps = ("import", "build", "eager")
        start_s = max(sum(c.record.step_s.get(s, 0.0) for s in steps) for c in runners)
        compile_s = sum(
            (
                _WARM if c.record.config.backend == "inductor" else 1.0
            )  # others keep no cache
            * c.record.step_s.get("compile", 0.0)
            for c in runners
        )
        return start_s + compile_s + LIMITS.max_s + sum(map(_later_s, runners))

    # One set --------------------------------------------------------------------------------------

    def _begin(self, cell: Cell, runners: Sequence[Candidate]) -> _Set:
        """A set: a process for those that can share one, and one for each of the others."""
        study = self.study
        earlier = [
            r.race or 0 for r in study.records if (r.phase, r.batch_size) == cell
        ]
        number = 1 + max(earlier, default=0)
        groups = self._groups(runners)
        study.progress.racing(*cell, len(runners), number)
        began_s = study.deadlines.spent_s
        most_s = (
            _FIRST * self._set_s(cell, runners) if self._must_be(cell, runners) else 0.0
        )
        return _Set(
            cell,
            number,
            len(runners),
            began_s,
            groups,
            len(groups) > 1,
            sum(map(_later_s, runners)),
            began_s + most_s,
        )

    def _start_groups(self, jobs: Jobs, current: _Set) -> None:
        """Start what there is room for; after Ctrl-C nothing more."""
        while current.waiting and jobs.has_room and not (self._alone and jobs.size):
            group = current.waiting.pop(0)
            job = self._start(
                jobs, current.cell, group, takes_turns=current.takes_turns
            )
            current.running[job] = group

    def _groups(self, runners: Sequence[Candidate]) -> list[list[Candidate]]:
        """Who shares a process with whom.

        By themselves are those that set something for the whole process, or whose backend does, run
        under another interpreter, or have failed beside others.
        """
        alone = [
            c
            for c in runners
            if c.record.config.needs_own_process or c.record.number in self._alone
        ]
        shared = [c for c in runners if c not in alone]
        return [*([shared] if shared else []), *([c] for c in alone)]

    def _start(
        self,
        jobs: Jobs,
        cell: Cell,
        group: Sequence[Candidate],
        takes_turns: bool = False,
        exported: ExportedCode | None = None,
    ) -> int:
        """Start a process that times these settings beside eager; its number."""
        factory, (phase, batch_size) = self.study.job_factory, cell
        request = TrialRequest(
            header=factory.header,
            number=factory.next_number(),
            phase=phase,
            batch_size=batch_size,
            sides=tuple(self._side(c, exported) for c in group),
            limits=LIMITS,
            takes_turns=takes_turns,
            calls_per_update=self.study.calls_per_update(*cell),
            compile_threads=self.study.executor.compile_threads(not takes_turns),
        )
        job = factory.job(
            request,
            environment=group[0].record.config.environment,
            fresh=exported is not None,
            alone=not takes_turns,
        )
        self._asked[request.number] = request
        jobs.start(job)
        return request.number

    def _side(self, c: Candidate, exported: ExportedCode | None) -> Side:
        """With the compiler cache of its trial, if one is there."""
        factory, number = self.study.job_factory, c.record.number
        cache, has_cache = str(factory.cache_of(number)), factory.has_cache(number)
        is_known = c.is_verified or exported is not None
        return Side(
            c.record.config,
            repeats=number,
            cache=cache,
            is_warm=has_cache,
            checks=Checks.FIRST if is_known else Checks.ALL,
            compile_s=c.record.compile_s,
            exported=exported,
        )

    def _records(
        self, job: int, group: Sequence[Candidate], ending: Ending
    ) -> list[Record]:
        """A record of each side that had its turn, with what only its trial has found."""
        trials = {c.record.number: c.record for c in group}
        self.study.job_factory.drop_cache(job)
        records = records_of(self._asked.pop(job), ending, self._at_work(job))
        for record in records:
            trial = trials[record.repeats or 0]
            record.refresh_s = record.refresh_s or trial.refresh_s
            record.calls_per_update = trial.calls_per_update
        return records

    def _at_work(self, job: int) -> int:
        """The trial whose setting was at work when the process ended; -1 for none."""
        with contextlib.suppress(OSError, ValueError):
            return int(
                (self.study.job_factory.folder.trial(job) / AT_WORK).read_text("utf-8")
            )
        return -1

    def _save(self, job: int, current: _Set, ending: Ending) -> None:
        """Save a record of each side; one that failed beside others is run again by itself."""
        study, group = self.study, current.running.pop(job)
        had_company = current.takes_turns or len(group) > 1
        numbers = itertools.chain((job,), iter(study.job_factory.next_number, None))
        records = self._records(job, group, ending)
        for record in records:
            trial = record.repeats or 0
            if not record.ok and had_company and trial not in self._alone:
                self._alone.add(trial)
                continue
            record.number, record.race = next(numbers), current.number
            record.raced_in = job
            study.save_raced(record)
        if not records and ending.outcome is not Outcome.INTERRUPTED:
            study.progress.warning(
                f"a race of {current.cell[0]} ended with {ending.outcome.value} "
                f"({ending.message}): log in {study.job_factory.folder.trial(job)}"
            )
            self._given_up.add(current.cell)


def _later_s(c: Candidate) -> float:
    """About how long the later checks of a setting take: calls, and another compile of some."""
    if c.is_verified:
        return 0.0
    record = c.record
    bakes = record.config.bakes_weights
    compile_s = record.step_s.get("compile", 0.0) if bakes else 0.0
    return compile_s + record.step_s.get("verify", 0.0)
