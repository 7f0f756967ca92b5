"""Leases in a database: which driver of a shared study tries which setting.

A driver renews its leases by counting up; another one that sees no counting for long enough, by
its own clock, takes a lease over. So no two machines' clocks are compared.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

__all__ = ["EXPIRY_S", "Leases"]

EXPIRY_S = 30.0
"""A lease that is not renewed for so long is of a driver that has died."""

_ABOUT = "about"  # in place of a setting; what all drivers have in common in place of the driver
_TABLE = sql.Table(
    "autocompile_leases",
    sql.MetaData(),
    sql.Column("study", sql.String(250), primary_key=True),
    sql.Column("setting", sql.String(64), primary_key=True),
    sql.Column("driver", sql.Text, nullable=False),
    sql.Column("beats", sql.BigInteger, nullable=False),
)


class Leases:
    """The leases of one driver on one study.

    Args:
        engine: of the database; the table is made if it does not exist.
        study, driver: names; the driver's is its own.
        clock: seconds.
    """

    def __init__(
        self,
        engine: sql.Engine,
        study: str,
        driver: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._study, self._driver = engine, study, driver
        self._clock = clock
        self._seen: dict[str, tuple[tuple[str, int], float]] = {}  # and since when
        self._renewed = clock()
        with contextlib.suppress(SQLAlchemyError):  # another driver makes it at this moment
            _TABLE.metadata.create_all(engine, checkfirst=True)
        mine = sql.delete(_TABLE).where(self._here(), _TABLE.c.driver == driver)
        self._change(mine)  # of an earlier session

    def claim(self, setting: str) -> bool:
        """Take a setting that nobody has; False if another driver has it."""
        row = {"study": self._study, "setting": setting, "driver": self._driver, "beats": 0}
        try:
            self._change(sql.insert(_TABLE).values(row))  # some databases count no inserted rows
        except IntegrityError:
            return False
        return True

    def release(self, setting: str) -> None:
        """Give a lease back, if it is this driver's."""
        at = _TABLE.c.setting == setting
        self._change(sql.delete(_TABLE).where(self._here(), at, _TABLE.c.driver == self._driver))

    def agreed(self, about: str) -> str:
        """What all drivers have in common, as the first one has said it."""
        row = {"study": self._study, "setting": _ABOUT, "driver": about, "beats": 0}
        with contextlib.suppress(IntegrityError):
            self._change(sql.insert(_TABLE).values(row))
        with self._engine.connect() as connection:
            said = sql.select(_TABLE.c.driver).where(self._here(), _TABLE.c.setting == _ABOUT)
            return str(connection.execute(said).scalar_one())

    def keep(self) -> None:
        """Renew this driver's leases where that is due; to be called every few seconds."""
        if self._clock() - self._renewed >= EXPIRY_S / 6:
            self._renewed = self._clock()
            beat = sql.update(_TABLE).values(beats=_TABLE.c.beats + 1)
            self._change(beat.where(self._here(), _TABLE.c.driver == self._driver))

    def others(self) -> set[str]:
        """The settings that other drivers, also dead ones, have."""
        columns = _TABLE.c.setting, _TABLE.c.driver, _TABLE.c.beats
        with self._engine.connect() as connection:
            found = connection.execute(
                sql.select(*columns).where(
                    self._here(), _TABLE.c.driver != self._driver, _TABLE.c.setting != _ABOUT
                )
            ).all()
        now, before = self._clock(), self._seen
        self._seen = {}
        for setting, driver, beats in found:
            state, since = before.get(setting, (None, now))
            self._seen[setting] = (driver, beats), since if state == (driver, beats) else now
        return set(self._seen)

    def take_over(self, setting: str) -> bool:
        """Take a setting whose driver has died, as :meth:`others` has seen it."""
        if setting not in self._seen:
            return self.claim(setting)
        (driver, beats), since = self._seen[setting]
        if self._clock() - since < EXPIRY_S:
            return False
        as_seen = _TABLE.c.driver == driver, _TABLE.c.beats == beats
        taken = sql.update(_TABLE).values(driver=self._driver, beats=0)
        at = _TABLE.c.setting == setting
        return self._change(taken.where(self._here(), at, *as_seen)) == 1

    def _here(self) -> sql.ColumnElement[bool]:
        return _TABLE.c.study == self._study

    def _change(self, statement: sql.sql.expression.UpdateBase) -> int:
        with self._engine.begin() as connection:
            return int(connection.execute(statement).rowcount)
