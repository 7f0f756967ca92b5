"""The search of a run: the sampler chooses a setting, a trial tries it, its record is kept.

All phases and batch sizes are one study. Failures are records; none of them stops the search.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from autocompile.estimate.decision import SETS
from autocompile.execute.executor import Ending, Executor, Job
from autocompile.execute.job import JobFactory, adaptive_timeout_s
from autocompile.progress import Progress
from autocompile.protocol.requests import Side, TimingLimits, TrialRequest
from autocompile.search.deadlines import Deadlines
from autocompile.search.jobs import Interrupts, Jobs
from autocompile.search.optuna_study import OptunaStudy
from autocompile.search.records import answer, records_of, to_record
from autocompile.search.sampler import Left, ListedSampler
from autocompile.settings.config import DEFAULT_INDUCTOR, Cell, Setting
from autocompile.store.record import Checks, Outcome, Record

# Compiler caches of each phase and batch size: as many as may be raced.
_CACHES_KEPT = 8
_EAGER = TimingLimits(front_s=0.5)  # of eager mode against itself, which is no rival
_SIDES_WITHOUT_LIMIT = 4  # where nobody knows the memory, as of another node
# Compiling may be so much shorter than expected while nothing has been compiled: it was in eight of
# ten models (studies/search/operators.py). A run is longer only where that would not do.
_UNSURE = 1.5
# Times as long as the effort usually takes, and as was said: what is less is not worth a line.
_TOLD, _TOLD_AGAIN = 1.1, 1.3
_NAMED = 3  # untried settings that a report may name


def plain_runs_alone(memory_bytes: int | None, slots: int) -> bool:
    """Whether plain ``torch.compile()`` runs before all others that compile, and beside none.

    On an accelerator, whose host has cores for all, what promises most begins with it: one compile
    of a large model takes minutes, in which all but a core or two would wait.
    """
    is_accelerator = memory_bytes is not None
    return not (is_accelerator and slots > 2)


@dataclass
class Study:
    """Tries settings until none is worth trying or the budget is spent."""

    sampler: ListedSampler
    job_factory: JobFactory
    executor: Executor
    progress: Progress
    deadlines: Deadlines  # of the whole run; without them every setting is tried
    # Calls between two changes of the weights in a phase at a batch size; None: not known or never.
    calls_per_update: Callable[[str, int | None], int | None]
    passes: Callable[
        [str], float | None
    ]  # that a program makes in a phase, if that is known
    records: list[
        Record
    ]  # of the search and the races, those of earlier sessions included
    # of each first trial; the later ones are those of its first race
    checks: Checks = Checks.FIRST
    # Most that start a process for the search in this session, as its budget is of a session.
    trials: int | None = None
    # Compiled settings of each phase that it tries at the least, if the run's end can be moved.
    compared: int = 0
    parameters: int = 0  # of the model
    compile_is_limited: bool = False  # a limit leaves out what compiles for longer
    # of the accelerator; None on a CPU: each trial has a limit
    memory_bytes: int | None = None
    interrupts: Interrupts = field(default_factory=Interrupts)  # of the whole run

    def __post_init__(self) -> None:
        self._known: dict[Setting, Record] = {}  # each setting that has a result
        # By job: more than one where settings share its process.
        self._running: dict[int, tuple[Setting, ...]] = {}
        self._alone: set[Setting] = set()  # has failed beside others
        self._asked: dict[int, TrialRequest] = {}  # of those running
        self._beside: dict[int, int] = {}  # most others that ran beside each
        self._races_s = self._first_set_s = 0.0
        self._began_s: dict[int, float] = {}  # of the run, before each that runs
        self._told_s = 0.0  # the longest end of the run that the user knows of
        for record in self.records:
            self._learn(record)
        self._processes = 0  # started by this session
        folder, warn = self.job_factory.folder, self.progress.warning
        self._optuna = OptunaStudy(self.sampler, folder, warn)
        listed = set(self.sampler.settings)  # an older version may have tried others
        searched = [r for r in self.records if r.role == "search"]
        self._optuna.restore([r for r in searched if Setting.of(r) in listed])

    # Which setting comes next, and when the search stops ------------------------------------------

    def search(self, races_s: Callable[[int], float]) -> None:
        """Try settings side by side until none is worth trying or the races need the time.

        ``races_s`` tells how many seconds so many sets of each phase take, by what is known so far.
        """
        with self.jobs(self._is_over) as jobs:
            while True:
                # Without the first set nothing is verified. It moves the end by what it is expected
                # to take, and twice of that is kept free of all that cannot move the end.
                self._first_set_s = races_s(1)
                self._make_room()
                self._races_s = races_s(2)
                if not self._comes_before_races:
                    self._races_s = races_s(SETS[0])
                for job in self._next_jobs(jobs):
                    jobs.start(job)
                if not jobs.size:
                    return
                for record in self._concluded(*jobs.next()):
                    self._save(record)

    def jobs(self, is_over: Callable[[], bool]) -> Jobs:
        """Runs the run's jobs until ``is_over``."""
        again, interrupts = self.job_factory.again, self.interrupts
        return Jobs(self.executor, self.progress, is_over, again, interrupts)

    def rest(self) -> dict[str, list[dict[str, Any]]] | None:
        """By phase, untried settings that may be faster than the best: the most promising few.

        None where the sampler cannot say it.
        """
        if (every := self._optuna.rest) is None:
            return None
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for setting, likely, most in every:
            if len(found[setting.phase]) < _NAMED:
                gain = {"likely": round(likely, 4), "most": round(most, 4)}
                found[setting.phase].append(
                    {"config": setting.config.to_dict(), **gain}
                )
        return dict(found)

    def unseen(self) -> dict[str, list[str]]:
        """By phase, the families that work here and were not looked at once."""
        return self._optuna.unseen

    def _make_room(self) -> None:
        """Move the end of the run where too few compiled settings would be tried before it."""
        if not self.compared:
            return
        search_s = self._optuna.seconds_to_compare(self._elapsed_s)
        if not any(not r.config.is_eager and r.wall_s for r in self._known.values()):
            search_s /= _UNSURE
        if not self.deadlines.make_room(search_s, self._first_set_s):
            return
        total_s, usual_s = self.deadlines.total_s, self.deadlines.usual_s
        if not (total_s and usual_s):
            return
        if total_s > max(_TOLD * usual_s, _TOLD_AGAIN * self._told_s):
            self._told_s = total_s
            self.progress.warning(
                f"trials take long here: the run takes about {total_s / 60:.1f} min in place of "
                f"{usual_s / 60:.1f}, in which {self.compared} compiled settings of each phase can "
                f"be tried (--budget {usual_s:.0f}s ends it sooner)"
            )

    def _is_over(self) -> bool:
        """Whether what runs must be ended. Eager mode and plain torch.compile() are, for no race.

        Nor is, where it can move the end, what is expected to tell more than races.
        """
        self._make_room()  # for what is late
        if self.deadlines.is_over():
            return True
        running = itertools.chain(*self._running.values())
        if not self.sampler.yardsticks.isdisjoint(running):
            return False
        if self.compared and self._optuna.is_awaited(self._elapsed_s):
            return False
        return self.deadlines.is_search_over(self._races_s)

    @property
    def _comes_before_races(self) -> bool:
        """Whether something is expected to tell more than a second set of races."""
        return self._optuna.comes_before_races(self._left, self._elapsed_s)

    @property
    def _elapsed_s(self) -> dict[Setting, float]:
        """Seconds since each trial began that is running."""
        now_s = self.deadlines.spent_s
        return {
            setting: now_s - self._began_s[number]
            for number, settings in self._running.items()
            for setting in settings
        }

    @property
    def _left(self) -> Left:
        """How long a trial may take that begins now, so that it ends before the races.

        Of those that run, each may hold it up while it is timed. What the effort promises moves
        the end of the run, and only that is its limit.
        """
        ran = [r.step_s for r in self._worked() if r.wall_s > 0]
        timed = [steps.get("verify", 0.0) + steps.get("measure", 0.0) for steps in ran]
        waits_s = (
            fmean(timed) * len(self._running) / self.executor.lanes if timed else 0.0
        )
        usual_s = self.deadlines.trial_s(self._races_s, waits_s)
        if not self.compared:
            return Left(usual_s, usual_s)
        return Left(usual_s, self.deadlines.longest_trial_s - waits_s)

    def _next_jobs(self, jobs: Jobs) -> Iterator[Job]:
        """All that may start now; settings that need no process get their record at once."""
        while jobs.has_room and (setting := self._next()):
            number = self.job_factory.next_number()
            if (record := answer(number, setting, self._known)) is not None:
                self._save(record)
                continue
            self._processes += 1
            settings = (setting, *self._others_beside(setting))
            self._running[number] = settings
            self._began_s[number] = self.deadlines.spent_s
            for each in self._running:
                others = len(self._running) - 1
                self._beside[each] = max(self._beside.get(each, 0), others)
            job = self._job(number, settings)
            self.progress.started(number, setting)
            yield job

    def _others_beside(self, setting: Setting) -> list[Setting]:
        """What shares the process of a setting: of eager mode all that compiles nothing."""
        if setting in self._alone:
            return []
        found = self._optuna.ask_beside(setting, self._left)
        fits = [each for each in found if each not in self._alone]
        if self._most_sides is not None:
            fits = fits[: max(0, self._most_sides - 1)]
        for each in found:
            if each not in fits:
                self._optuna.drop(each)
        return fits

    @property
    def _most_sides(self) -> int | None:
        """How many settings may share a process; None: as many as there are.

        Each holds weights, gradients and two moments in float32, and so do eager mode and what it
        is compared with; half of the memory is left for the rest.
        """
        limit = self.memory_bytes or self.job_factory.memory_limit_bytes
        if not self.parameters:
            return None
        if not limit:
            return _SIDES_WITHOUT_LIMIT
        return int(limit / 2 / (16 * self.parameters)) - 2

    def _next(self) -> Setting | None:
        """The setting to start now; None where none is worth it, fits the time or the memory."""
        if self.spent_trials or self.deadlines.is_over():
            return None
        if len(self._running) >= self._fitting:
            return None
        return self._optuna.ask(self._left)

    @property
    def spent_trials(self) -> int:
        """What ``--trials`` is, once as many were started; else 0."""
        most = self.trials
        return most if most is not None and self._processes >= most else 0

    @property
    def _fitting(self) -> int:
        """How many trials the accelerator's memory holds side by side, by the largest so far."""
        largest = max((r.held_bytes or 0 for r in self._worked()), default=0)
        slots = self.executor.slots
        return (
            max(1, int(self.memory_bytes / largest))
            if self.memory_bytes and largest
            else slots
        )

    def _worked(self, cell: Cell | None = None) -> list[Record]:
        return [r for s, r in self._known.items() if r.ok and cell in (None, s.cell)]

    # From a setting to its trial and its record ---------------------------------------------------

    def _job(self, number: int, settings: Sequence[Setting]) -> Job:
        setting = settings[0]
        config, worked = setting.config, self._worked(setting.cell)
        numbers = [number, *(self.job_factory.next_number() for _ in settings[1:])]
        speeds = [r.measurement.speedup.value for r in worked if r.measurement]
        request = TrialRequest(
            header=self.job_factory.header,
            number=number,
            phase=setting.phase,
            sides=tuple(
                Side(one.config, number=each, checks=self.checks)
                for one, each in zip(settings, numbers, strict=True)
            ),
            batch_size=setting.batch_size,
            limits=_limits(settings, max(speeds, default=0.0)),
            calls_per_update=self.calls_per_update(*setting.cell),
            compile_threads=self._threads(setting),
        )
        self._asked[number] = request
        seen = [
            r.step_s.get("compile", 0.0)
            for r in self._worked()
            if (r.phase, r.config.backend, r.config.mode)
            == (setting.phase, config.backend, config.mode)
            and r.duplicate_of is None
        ]
        timeout_s = adaptive_timeout_s(self.job_factory.timeout_s, seen)
        return self.job_factory.job(request, timeout_s, environment=config.environment)

    def _threads(self, setting: Setting) -> int:
        """With how many threads it compiles: plain torch.compile() as in a user's program."""
        is_alone = setting in self.sampler.baselines and self.sampler.plain_alone
        return self.executor.compile_threads(is_alone)

    def _concluded(self, number: int, ending: Ending) -> Iterator[Record]:
        """The records of a job; what failed beside others is still to be tried, by itself."""
        settings, beside = self._running.pop(number), self._beside.pop(number)
        records = records_of(self._asked.pop(number), ending)
        ended = {Setting.of(record): record for record in records}
        again = False
        for setting in settings:
            record = ended.get(setting)
            if (len(settings) == 1 and record) or (record and record.ok):
                yield self._completed(record, beside)
            elif ending.outcome is not Outcome.INTERRUPTED:
                again = True
                self._alone.add(setting)
                self._optuna.drop(setting)
            elif setting is settings[0]:
                yield self._completed(to_record(number, setting, ending), beside)
            else:
                self._optuna.drop(setting)
        if len(settings) > 1:
            self.progress.over(number)
        if again:  # --trials counts what is tried, and this says nothing yet
            self._processes -= 1

    def _completed(self, record: Record, beside: int) -> Record:
        """With what only the search knows of it."""
        setting = Setting.of(record)
        record.horizon, record.beside = self.passes(setting.phase), beside
        if record.compile_s is not None and not record.config.is_eager:
            record.compile_threads = self._threads(setting)
            if record.beside and (record.horizon or self.compile_is_limited):
                threads = record.compile_threads
                record.notes.append(
                    f"its compile time, which counts here, was measured with up to "
                    f"{record.beside} other trials beside it, on {threads} "
                    f"thread{'s' if threads > 1 else ''}: alone it may be shorter"
                )
        return record

    # What is saved --------------------------------------------------------------------------------

    def _save(self, record: Record) -> None:
        """Save a record of the search, before Optuna is told."""
        self.job_factory.folder.save(record)
        self.records.append(record)
        self._learn(record)
        self._optuna.tell(record)
        self._drop_caches(record)
        self.progress.ended(record, self._optuna.left + len(self._running))

    def save_raced(self, record: Record) -> None:
        """Save one side of a race; it is not part of the Optuna study."""
        self.job_factory.folder.save(record)
        self.records.append(record)
        self.progress.ended(record, self._optuna.left)

    def _learn(self, record: Record) -> None:
        """An interrupted setting has no result: it is still to be tried."""
        if record.role == "search" and record.outcome is not Outcome.INTERRUPTED:
            self._known[Setting.of(record)] = record

    def _drop_caches(self, record: Record) -> None:
        """Keep the compiler caches of those that may be raced, which run on them."""
        if not record.ok or record.config.is_eager:
            self.job_factory.drop_cache(record.number)
        rivals = [
            r
            for r in self._worked(Setting.of(record).cell)
            if not r.config.is_eager
            and r.config != DEFAULT_INDUCTOR
            and self.job_factory.has_cache(r.number)
        ]
        if len(rivals) > _CACHES_KEPT:
            slowest = min(
                rivals, key=lambda r: r.measurement.speedup.high if r.measurement else 0
            )
            self.job_factory.drop_cache(slowest.number)


def _limits(settings: Sequence[Setting], beat: float) -> TimingLimits:
    """When the timing of a first trial ends: each of several has as long as one."""
    if len(settings) == 1:
        is_eager = settings[0].config.is_plain_eager
        return _EAGER if is_eager else TimingLimits(beat=beat)
    one, count = TimingLimits(), len(settings)
    return TimingLimits(beat=beat, max_s=one.max_s * count, front_s=one.front_s * count)
