"""The Optuna study of a run: in memory for the search, and a copy on disk for the user.

The records in the run's folder are authoritative. ``ask`` and ``tell`` on a database would take a
dozen transactions per trial and could fail in between, so they use a study in memory, and each
finished trial is added to the database in one transaction. When the run is resumed, the database
is made anew from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from autocompile.estimate.candidates import with_costs
from autocompile.search.sampler import MAY_BE, UNLIMITED, Left, ListedSampler, Rest
from autocompile.settings.config import Setting
from autocompile.store.record import Outcome, Record, RunFolder

_TROUBLE = (
    optuna.exceptions.OptunaError,
    SQLAlchemyError,
    OSError,
    ImportError,
    ValueError,
)
_LOCK_PATIENCE_S = 1.0  # Optuna tries five times


@dataclass
class OptunaStudy:
    """Asks Optuna for settings and reports results to it and to the database."""

    sampler: ListedSampler
    folder: RunFolder
    warn: Callable[[str], None]  # called when the database cannot be written

    def __post_init__(self) -> None:
        self._open: dict[Setting, optuna.Trial] = {}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._memory = self._study(optuna.storages.InMemoryStorage())
        self._disk: optuna.Study | None = None

    @property
    def rest(self) -> list[Rest] | None:
        return self.sampler.rest(self._memory)

    @property
    def unseen(self) -> dict[str, list[str]]:
        return self.sampler.unseen(self._memory)

    @property
    def left(self) -> int:
        return len(self.sampler.left(self._memory))

    def comes_before_races(
        self, left: Left, elapsed_s: Mapping[Setting, float]
    ) -> bool:
        """Whether something fits or is running that is expected to tell more than races."""
        return self.sampler.comes_before_races(self._memory, left, elapsed_s)

    def is_awaited(self, elapsed_s: Mapping[Setting, float]) -> bool:
        """Whether something runs that is expected to tell more than races, and is not very late."""
        return self.sampler.is_awaited(self._memory, elapsed_s)

    def ask(self, left: Left = UNLIMITED) -> Setting | None:
        """The next setting, if its trial may take so long; None if none may begin now."""
        may_be = self.sampler.candidates(self._memory, left)
        if not may_be:
            return None
        self._memory.enqueue_trial({}, user_attrs={MAY_BE: may_be})
        trial = self._memory.ask(dict(self.sampler.distributions))
        setting = self.sampler.setting(trial.params)
        self._open[setting] = trial
        return setting

    def seconds_to_compare(self, elapsed_s: Mapping[Setting, float]) -> float:
        """What trials still take until what is compared first, or awaited, has ended.

        ``elapsed_s``: of those that run.
        """
        return self.sampler.seconds_to_compare(self._memory, elapsed_s)

    def ask_beside(self, setting: Setting, left: Left) -> list[Setting]:
        """What may share the process of a setting in eager mode, which is about to begin."""
        found = []
        for i in self.sampler.beside(self._memory, setting, left):
            self._memory.enqueue_trial({}, user_attrs={MAY_BE: [i]})
            trial = self._memory.ask(dict(self.sampler.distributions))
            found.append(self.sampler.setting(trial.params))
            self._open[found[-1]] = trial
        return found

    def drop(self, setting: Setting) -> None:
        """Take back that a setting is tried: it has no result."""
        self._memory.tell(self._open.pop(setting), state=TrialState.FAIL)

    def tell(self, record: Record) -> None:
        """Report a finished trial, whose record is already on disk."""
        row, trial = self._row(record), self._open.pop(Setting.of(record))
        for name, value in row.user_attrs.items():
            trial.set_user_attr(name, value)
        self._memory.tell(trial, row.value, state=row.state)
        try:
            if self._disk is not None:
                self._disk.add_trial(row)
        except _TROUBLE as error:
            self._without_disk(error)

    def restore(self, records: Sequence[Record]) -> None:
        """Open the database and add the records to both studies."""
        rows = [self._row(record) for record in records]
        self._memory.add_trials(rows)
        try:
            self._disk = self._filled(rows)
        except _TROUBLE as error:
            self._without_disk(error)

    def _without_disk(self, error: Exception) -> None:
        self._disk = None
        self.warn(
            f"{self.folder.study_db.name} cannot be written ({_first_line(error)}); the trials are "
            "safe in the run's folder, and --resume adds the missing rows"
        )

    def _filled(self, rows: Sequence[FrozenTrial]) -> optuna.Study:
        """The study in a new database, with these rows."""
        path = self.folder.study_db
        path.unlink(missing_ok=True)
        options = {"connect_args": {"timeout": _LOCK_PATIENCE_S}}
        storage = optuna.storages.RDBStorage(f"sqlite:///{path.resolve()}", options)
        study = self._study(storage)
        study.add_trials(rows)
        return study

    def _study(self, storage: optuna.storages.BaseStorage) -> optuna.Study:
        return optuna.create_study(
            study_name="autocompile",
            storage=storage,
            sampler=self.sampler,
            direction="maximize",
            load_if_exists=True,
        )

    def _row(self, record: Record) -> FrozenTrial:
        """The trial's row; a failure counts as pruned, since samplers propose failed ones again."""
        value = _value(record)
        state = TrialState.COMPLETE if value is not None else TrialState.PRUNED
        row = optuna.trial.create_trial(
            state=TrialState.FAIL if record.outcome is Outcome.INTERRUPTED else state,
            value=value,
            params=self.sampler.params(Setting.of(record)),
            distributions=dict(self.sampler.distributions),
            user_attrs=_attributes(record),
        )
        if record.spans:
            row.datetime_start = datetime.fromtimestamp(record.spans[0][1])
            row.datetime_complete = datetime.fromtimestamp(record.spans[-1][2])
        return row


def _value(record: Record) -> float | None:
    """The speed-up over eager including the cost of new weights; None if unknown."""
    measured = record.measurement
    if not record.ok or measured is None or not record.is_known_to_pay:
        return None
    if record.config.is_baseline:
        return 1.0
    return with_costs(measured.speedup.value, record, measured.eager_call_s)


def _attributes(record: Record) -> dict[str, Any]:
    """User attributes, which the sampler and the dashboard read."""
    every: dict[str, Any] = {
        "number": record.number,
        "outcome": record.outcome.value,
        # Also as text, since parameters with one value are not in the study.
        "setting": record.config.label(),
        "phase": record.phase,
        "batch_size": record.batch_size,
        "message": record.message[:500] or None,
        "same_as": record.duplicate_of,
        "seconds": round(record.wall_s, 3) or None,
    }
    if record.ok and record.measurement:
        speedup = record.measurement.speedup
        every["call_ms"] = float(f"{1e3 * record.measurement.compiled_call_s:.4g}")
        every["interval"] = f"{speedup.low:.3f} to {speedup.high:.3f}"
    return {name: value for name, value in every.items() if value is not None}


def _first_line(error: BaseException) -> str:
    """The first line of what the database said."""
    while error.__cause__ is not None:  # the database's message, not Optuna's
        error = error.__cause__
    return next(iter(str(error).splitlines()), type(error).__name__)[:160]
