"""The Optuna study of a run: in memory for the search, and a copy on disk for the user.

The records in the run's folder are authoritative. ``ask`` and ``tell`` on a database would take a
dozen transactions per trial and could fail in between, so they use a study in memory, and each
finished trial is added to the database in one transaction (:mod:`autocompile.search.rows`).
Missing rows are added when the run is resumed, and a corrupt database is rebuilt.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy.event
from optuna.distributions import check_distribution_compatibility
from optuna.trial import FrozenTrial, TrialState

from autocompile.estimate.candidates import with_refreshes
from autocompile.search.leases import (
    TROUBLE,
    first_line,
    storage_at,
    unusable,
    without_password,
)
from autocompile.search.rows import Rows
from autocompile.search.sampler import ListedSampler, Rest
from autocompile.search.seen import LEFT
from autocompile.settings.setting import Setting
from autocompile.store.record import Outcome, Record

__all__ = ["OptunaStudy"]

_LOCK_PATIENCE_S = 5
_FILTERS = threading.Lock()  # filters of warnings are of all threads: runs of a cluster set them
_METRIC = "speed-up over eager"
_NOTE = """\
The search of the run `{run}`. The answer, with the races that confirm it, is in its `report.html`.

- The value is the speed-up over eager mode in one process; 1 is as fast. All phases and batch sizes
  are one study, and eager mode is a trial of each.
- *Pruned* means that a setting has no valid result. `outcome` and `message` say why.
- *Fail* means that it was stopped before its end.
- The log of a trial is in `{run}/trials/`, in the folder of its `number`.
"""


@dataclass
class OptunaStudy:
    """Asks Optuna for settings and reports results to it and to the database.

    Attributes:
        run: path of the run, for the study's note.
        database: the run's file, or the URL of the user's storage.
        warn: called with a message when the database cannot be written.
    """

    sampler: ListedSampler
    name: str
    run: Path
    database: Path | str
    warn: Callable[[str], None]

    def __post_init__(self) -> None:
        self._open: dict[Setting, optuna.Trial] = {}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._memory = self._study(optuna.storages.InMemoryStorage())
        self._disk: optuna.Study | None = None

    @property
    def is_done(self) -> bool:
        """Whether the sampler has nothing left that is worth trying."""
        return self.sampler.is_done(self._memory)

    @property
    def rest(self) -> list[Rest]:
        """What was not tried and may be worth its seconds, by the sampler's own word."""
        return self.sampler.rest(self._memory)

    @property
    def promise(self) -> float:
        """The largest expected log speed-up over the best of what this driver runs."""
        return self.sampler.promise(self._memory, self._open)

    @property
    def left(self) -> int:
        return int((self.sampler.seen(self._memory).state == LEFT).sum())

    @property
    def place(self) -> str:
        """The database as messages name it: without a password."""
        if isinstance(self.database, str):
            return without_password(self.database)
        return self.database.name

    def ask(self) -> Setting | None:
        """The next setting; None if none can be tried now."""
        if not self.sampler.has_next(self._memory):
            return None
        trial = self._memory.ask(dict(self.sampler.distributions))
        setting = self.sampler.setting(trial.params)
        self._open[setting] = trial
        return setting

    def tell(self, record: Record) -> None:
        """Report a finished trial, whose record is already on disk."""
        row = self._row(record)
        if (trial := self._open.pop(Setting.of(record), None)) is not None:
            for name, told in row.user_attrs.items():
                trial.set_user_attr(name, told)
            self._memory.tell(trial, row.value, state=row.state)
        try:
            if self._disk is not None:
                self._rows.add([row])
        except TROUBLE as error:
            self._go_on_alone(error)

    def restore(self, records: Sequence[Record]) -> None:
        """Open the database and add the records to both studies.

        Raises:
            RunError: the user's storage cannot be used.
        """
        for record in records:
            self._memory.add_trial(self._row(record))
        try:
            self._disk = self._filled(records)
        except TROUBLE as error:
            if isinstance(self.database, str):
                raise unusable(self.database, error) from error
            if "locked" in str(error):
                name = self.database.name
                self.warn(f"{name} is locked by another program; --resume adds the rows")
            else:
                self._rebuild(self.database, records, first_line(error))

    def wait(self) -> bool:
        """Wait for other drivers for a moment; False where there is none to wait for."""
        return False

    def keep(self) -> None:
        """Tell other drivers that this one is alive; to be called every few seconds."""

    def _go_on_alone(self, error: Exception) -> None:
        self._disk = None
        self.warn(
            f"{self.place} cannot be written ({first_line(error)}); the trials are safe in "
            "the run's folder, and --resume adds the missing rows"
        )

    def _is_own(self, row: FrozenTrial) -> bool:
        """Whether a row of the database is of this run."""
        return True

    def _rebuild(self, database: Path, records: Sequence[Record], why: str) -> None:
        name = database.name
        try:
            aside = database.replace(f"{database}.torn")
            self._disk = self._filled(records)
        except TROUBLE as error:
            self.warn(f"{name} cannot be written: {first_line(error)}")
        else:
            self.warn(
                f"{name} could not be read ({why}); it was rebuilt from the trials' records, "
                f"and the old one renamed to {aside.name}"
            )

    def _filled(self, records: Sequence[Record]) -> optuna.Study:
        """The study on disk, with unfinished rows closed and missing records added."""
        storage = self._storage()
        study = self._study(storage)
        found = storage.get_study_id_from_name(self.name)
        if "dashboard:note_ver" not in storage.get_study_system_attrs(found):
            # As optuna_dashboard.save_note does; from then on it is the user's.
            note = _NOTE.format(run=self.run)
            storage.set_study_system_attr(found, "dashboard:note_str:0", note)
            storage.set_study_system_attr(found, "dashboard:note_ver", 1)
        rows = study.get_trials(deepcopy=False)
        for name, there in rows[-1].distributions.items() if rows else ():
            here = self.sampler.distributions.get(name, there)
            check_distribution_compatibility(there, here)
        rows = [row for row in rows if self._is_own(row)]
        told = {row.user_attrs.get("number") for row in rows if row.state.is_finished()}
        for row in rows:
            if not row.state.is_finished():
                study.tell(row.number, state=TrialState.FAIL)
        self._rows = Rows(storage.engine, found)
        self._rows.add([self._row(r) for r in records if r.number not in told])
        return study

    def _storage(self) -> optuna.storages.RDBStorage:
        if isinstance(self.database, str):
            return storage_at(self.database)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{self.database.resolve()}",
            engine_kwargs={"connect_args": {"timeout": _LOCK_PATIENCE_S}},
        )
        # The database can be rebuilt, so rows need no fsync.
        sqlalchemy.event.listen(
            storage.engine, "connect", lambda c, _: c.execute("PRAGMA synchronous=OFF")
        )
        storage.engine.dispose()
        return storage

    def _study(self, storage: optuna.storages.BaseStorage) -> optuna.Study:
        with _FILTERS, warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(
                study_name=self.name,
                storage=storage,
                sampler=self.sampler,
                direction="maximize",
                load_if_exists=True,
            )
            study.set_metric_names([_METRIC])
            return study

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
    return with_refreshes(measured.speedup.value, record, measured.eager_call_s)


def _attributes(record: Record) -> dict[str, Any]:
    """User attributes, which the sampler and the dashboard read."""
    every: dict[str, Any] = {
        "number": record.number,
        "outcome": record.outcome.value,
        # Also as text, since parameters with one value are not in the study.
        "setting": record.config.label(),
        "phase": record.phase,
        "batch_size": record.batch_size,
    }
    if record.message:
        every["message"] = record.message[:500]
    if record.duplicate_of is not None:
        every["same_as"] = record.duplicate_of
    if record.wall_s:
        every["seconds"] = round(record.wall_s, 3)
    if record.ok and record.measurement:
        speedup = record.measurement.speedup
        every["call_ms"] = float(f"{1e3 * record.measurement.compiled_call_s:.4g}")
        every["interval"] = f"{speedup.low:.3f} to {speedup.high:.3f}"
        every["spread"] = math.log(speedup.high / speedup.low)
    return every
