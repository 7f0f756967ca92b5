"""Adds finished trials to an Optuna database, any number in one transaction.

``Study.add_trial`` looks for what may be there already, in about forty statements for each trial.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sql
from optuna.distributions import distribution_to_json
from optuna.trial import FrozenTrial

__all__ = ["Rows"]

_TABLES = ("studies", "trials", "trial_values", "trial_params", "trial_user_attributes")


class Rows:
    """The trials of one study of a database.

    Args:
        study: its id there.
    """

    def __init__(self, engine: sql.Engine, study: int) -> None:
        self._engine, self._study = engine, study
        metadata = sql.MetaData()
        metadata.reflect(engine, only=_TABLES)
        self._of, *self._tables = (metadata.tables[name] for name in _TABLES)

    def add(self, trials: Sequence[FrozenTrial]) -> None:
        """Add trials that have ended; their numbers follow on those that are there."""
        of, (rows, *parts) = self._of, self._tables
        mine = of.c.study_id == self._study
        before = sql.select(sql.func.count()).where(rows.c.study_id == self._study)
        with self._engine.begin() as connection:
            # Changes nothing and takes the lock that keeps numbers apart, in SQLite too.
            connection.execute(sql.update(of).where(mine).values(study_id=self._study))
            for number, trial in enumerate(trials, connection.execute(before).scalar_one()):
                row = {"study_id": self._study, "number": number, "state": trial.state.name}
                row |= {n: getattr(trial, n) for n in ("datetime_start", "datetime_complete")}
                key = connection.execute(sql.insert(rows).values(row)).inserted_primary_key
                own = dict(zip(("trial_id",), key or (), strict=True))
                for table, every in zip(parts, _parts(trial), strict=True):
                    if every:
                        connection.execute(sql.insert(table), [own | one for one in every])


def _parts(trial: FrozenTrial) -> tuple[list[dict[str, Any]], ...]:
    """Value, parameters and attributes as Optuna's tables have them."""
    value = {"objective": 0, "value": trial.value, "value_type": "FINITE"}
    params = [
        {
            "param_name": name,
            "param_value": d.to_internal_repr(trial.params[name]),
            "distribution_json": distribution_to_json(d),
        }
        for name, d in trial.distributions.items()
    ]
    told = [{"key": k, "value_json": json.dumps(v)} for k, v in trial.user_attrs.items()]
    return [value] if trial.value is not None else [], params, told
