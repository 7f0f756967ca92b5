"""The study of one phase: Optuna asks, a trial answers, and no failure stops it.

The record on disk is the truth; Optuna's database is a view of it that ``optuna-dashboard`` opens,
and is rebuilt from the records when it is missing or torn.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import optuna
from sqlalchemy.exc import SQLAlchemyError

from autocompile.config import CompileConfig
from autocompile.errors import RunError
from autocompile.execute.executor import Ended, Ending, Executor, Job, Stepped
from autocompile.execute.job import Workshop
from autocompile.record import Measurement, Outcome, Record, Step
from autocompile.search.sampler import SettingSampler, next_setting, plainer_twins
from autocompile.search.space import Setting, Space

__all__ = ["Budget", "Interrupted", "Observer", "PhaseStudy", "run_job", "to_record"]


class Interrupted(Exception):
    """The user pressed Ctrl-C; what was running has been ended and recorded."""


class Observer(Protocol):
    """Watches a run; what a screen shows of it."""

    def phase(self, name: str, space: str, settings: int) -> None:
        """A phase begins."""

    def noise_floor(self, value: float) -> None:
        """Eager has been measured against itself."""

    def started(
        self, number: int, config: CompileConfig, batch_size: int | None, role: str
    ) -> None:
        """A trial begins."""

    def step(self, number: int, step: Step) -> None:
        """A trial has come to a step."""

    def ended(self, record: Record, left: int) -> None:
        """A trial is over, or was answered without a process."""

    def confirming(self, processes: int) -> None:
        """The best are about to be measured again, in so many processes."""

    def tick(self) -> None:
        """About once a second."""


@dataclass
class Budget:
    """How much one phase may use.

    Attributes:
        until: ``time.monotonic()`` at which no further trial starts; None: no end.
        trials: how many trials may have a process of their own; None: no end.
    """

    until: float | None = None
    trials: int | None = None

    def spent(self, trials: int) -> bool:
        """Whether nothing more may start."""
        late = self.until is not None and time.monotonic() >= self.until
        return late or (self.trials is not None and trials >= self.trials)


def run_job(executor: Executor, job: Job, observer: Observer) -> tuple[Ending, bool]:
    """Run one job to its end.

    Returns:
        How it ended, and whether the user pressed Ctrl-C meanwhile.
    """
    executor.start(job)
    interrupted = False
    while True:
        try:
            for event in executor.wait(1.0):
                if isinstance(event, Stepped):
                    observer.step(event.number, event.step)
                elif isinstance(event, Ended):
                    return event.ending, interrupted
            observer.tick()
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            executor.cancel(job.number)


def to_record(number: int, phase: str, setting: Setting, ending: Ending) -> Record:
    """What is kept of a job that has ended; a payload that makes no sense is ``infrastructure``."""
    data: Mapping[str, Any] = ending.payload
    try:
        raw = data.get("measurement")
        measurement = Measurement(**{k: tuple(v) for k, v in raw.items()}) if raw else None
        if measurement is not None:
            _ = measurement.speedup  # raises if the times are none
        detail = {**data.get("detail", {}), "weights_live": data.get("weights_live")}
        if where := data.get("where"):
            detail["where"] = where
        return Record(
            number=number,
            phase=phase,
            config=setting.config,
            batch_size=setting.batch_size,
            outcome=ending.outcome,
            step=ending.step,
            message=ending.message,
            measurement=measurement,
            wall_s=ending.wall_s,
            step_s=ending.step_s,
            notes=tuple(map(str, data.get("notes", ()))),
            detail=detail,
            compile_s=data.get("compile_s"),
            peak_memory_bytes=data.get("peak_memory_bytes"),
            eager_peak_memory_bytes=data.get("eager_peak_memory_bytes"),
            graphs=data.get("graphs"),
            graph_breaks=data.get("graph_breaks"),
            recompiles=data.get("recompiles"),
        )
    except (TypeError, ValueError, AttributeError) as error:
        broken = Ending(Outcome.INFRASTRUCTURE, ending.step, f"its result makes no sense: {error}")
        return to_record(number, phase, setting, broken)


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
        storage: an Optuna storage URL.
        records: of this phase, of earlier sessions too.
    """

    space: Space
    workshop: Workshop
    executor: Executor
    observer: Observer
    limits: Mapping[str, float]
    objective: str
    storage: str
    study_name: str
    records: list[Record] = field(default_factory=list)

    def run(self, budget: Budget) -> None:
        """Try settings.

        Raises:
            Interrupted: after Ctrl-C.
        """
        study = self._open()
        while left := self._left():
            own = sum(r.wall_s > 0 for r in self.records if r.role == "search")
            if budget.spent(own):
                break
            trial = study.ask(dict(self._sampler.distributions))
            setting = self._by_params[tuple(sorted(trial.params.items()))]
            number = self.workshop.next_number()
            trial.set_user_attr("number", number)
            record, interrupted = self._answer(number, setting), False
            if record is None:
                record, interrupted = self._execute(number, setting)
            self._keep(record)
            self._tell(study, trial, record)
            self.observer.ended(record, len(left) - 1)
            if interrupted:
                raise Interrupted

    def _left(self) -> list[Setting]:
        """Settings without a result; one that was interrupted has none."""
        done = {
            Setting(r.config, r.batch_size)
            for r in self.records
            if r.role == "search" and r.outcome is not Outcome.INTERRUPTED
        }
        return [s for s in (*self.space.settings, *self.space.unusable) if s not in done]

    def _pick(self) -> Setting:
        return next_setting(self.space, self._left(), self.records)

    def _answer(self, number: int, setting: Setting) -> Record | None:
        """A record that needs no process: an unusable backend, or what another trial has shown."""
        phase = self.space.phase
        if reason := self.space.unusable.get(setting):
            ending = Ending(Outcome.UNSUPPORTED, Step.IMPORT, reason)
            return to_record(number, phase, setting, ending)
        known = {Setting(r.config, r.batch_size): r for r in self.records if r.role == "search"}
        for twin in plainer_twins(setting):
            record = known.get(twin)
            if record and record.ok and not record.graph_breaks and not record.recompiles:
                same = record.number if record.duplicate_of is None else record.duplicate_of
                return dataclasses.replace(
                    record, number=number, config=setting.config, duplicate_of=same, wall_s=0.0
                )
        if setting.config.fullgraph:
            for record in self.records:  # Dynamo breaks the graph, whatever compiles its parts
                same = (record.config.dynamic is True) == (setting.config.dynamic is True)
                broke = record.outcome is Outcome.GRAPH_BREAK and record.duplicate_of is None
                if broke and same and record.batch_size == setting.batch_size:
                    return dataclasses.replace(
                        record,
                        number=number,
                        config=setting.config,
                        batch_size=setting.batch_size,
                        duplicate_of=record.number,
                        wall_s=0.0,
                    )
        return None

    def _execute(self, number: int, setting: Setting) -> tuple[Record, bool]:
        request = {
            "kind": "trial",
            "phase": self.space.phase,
            "config": setting.config.to_dict(),
            "batch_size": setting.batch_size,
            "limits": dict(self.limits),
        }
        job = self.workshop.job(number, request)
        self.observer.started(number, setting.config, setting.batch_size, "search")
        ending, interrupted = run_job(self.executor, job, self.observer)
        record = to_record(number, self.space.phase, setting, ending)
        if not record.ok or setting.config.is_eager:
            self.workshop.drop_cache(number)
        if record.ok and setting.config.is_eager and record.measurement:
            interval = record.measurement.speedup
            self.observer.noise_floor(max(interval.high - 1, 1 - interval.low))
        return record, interrupted

    def _keep(self, record: Record) -> None:
        """The record is on disk before Optuna hears of it."""
        self.workshop.folder.save(record)
        self.records.append(record)

    # Optuna's side -----------------------------------------------------------------------------

    def _open(self) -> optuna.Study:
        self._sampler = SettingSampler(self.space, self._pick)
        settings = (*self.space.settings, *self.space.unusable)
        self._by_params = {tuple(sorted(s.params().items())): s for s in settings}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            try:
                study = optuna.create_study(
                    study_name=self.study_name,
                    storage=self.storage,
                    sampler=self._sampler,
                    direction="maximize" if self.objective == "throughput" else "minimize",
                    load_if_exists=True,
                )
                self._repair(study)
            except (optuna.exceptions.OptunaError, SQLAlchemyError, OSError) as error:
                raise RunError(
                    f"the study database {self.storage} cannot be used",
                    str(error).splitlines()[0][:200],
                    "all finished trials are safe in the run folder; the database is only a view",
                    hint="move the database file away and repeat with --resume",
                ) from error
        return study

    def _repair(self, study: optuna.Study) -> None:
        """Close rows that a killed tuner left open and add records that Optuna never heard of."""
        rows = study.get_trials(deepcopy=False)
        for row in rows:
            if not row.state.is_finished():
                study.tell(row.number, state=optuna.trial.TrialState.FAIL)
        told = {row.user_attrs.get("number") for row in rows if row.state.is_finished()}
        for record in self.records:
            if record.role == "search" and record.number not in told:
                study.add_trial(self._row(record))

    def _value(self, record: Record) -> float | None:
        if not record.ok or record.measurement is None:
            return None
        call_s = record.measurement.compiled_call_s
        return (record.batch_size or 1) / call_s if self.objective == "throughput" else call_s

    def _row(self, record: Record) -> optuna.trial.FrozenTrial:
        value = self._value(record)
        state = optuna.trial.TrialState.PRUNED if value is None else None
        return optuna.trial.create_trial(
            state=state or optuna.trial.TrialState.COMPLETE,
            value=value,
            params=Setting(record.config, record.batch_size).params(),
            distributions=dict(self._sampler.distributions),
            user_attrs=_attributes(record),
        )

    def _tell(self, study: optuna.Study, trial: optuna.Trial, record: Record) -> None:
        """A failure is told as pruned: Optuna's samplers would propose a failed trial again."""
        for name, value in _attributes(record).items():
            trial.set_user_attr(name, value)
        value = self._value(record)
        if record.outcome is Outcome.INTERRUPTED:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        elif value is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, value)


def _attributes(record: Record) -> dict[str, Any]:
    """What the dashboard shows beside the value."""
    attributes: dict[str, Any] = {"number": record.number, "outcome": record.outcome.value}
    if record.message:
        attributes["message"] = record.message[:500]
    if record.duplicate_of is not None:
        attributes["same_as"] = record.duplicate_of
    if record.ok and record.measurement:
        attributes["speedup"] = record.measurement.speedup.value
    return attributes
