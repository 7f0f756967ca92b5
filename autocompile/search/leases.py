"""The database that ``--storage`` names, and its leases: which driver tries which setting.

A driver renews its leases by counting up; another one that sees no counting for long enough, by
its own clock, takes a lease over. So no two machines' clocks are compared.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import time
from collections.abc import Callable

import optuna
import sqlalchemy as sql
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from autocompile.errors import RunError

__all__ = [
    "EXPIRY_S",
    "TROUBLE",
    "Leases",
    "demand_usable",
    "first_line",
    "storage_at",
    "unusable",
    "without_password",
]

TROUBLE = (optuna.exceptions.OptunaError, SQLAlchemyError, OSError, ImportError, ValueError)
# Of PostgreSQL's client: seconds to connect, and ms after which a server that is gone is given up.
_PATIENCE = {"connect_timeout": "5", "tcp_user_timeout": "10000"}
EXPIRY_S = 30.0
"""A lease that is not renewed for so long is of a driver that has died."""

_SECRET = re.compile("pass|pwd|secret|token|odbc", re.IGNORECASE)  # in a URL's query
_NOT_READ = "it is not a database URL; in a password, @ : / ? are written %40 %3A %2F %3F"
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


def demand_usable(url: str) -> None:
    """Raise a RunError if the database cannot be reached or used."""
    try:
        storage_at(url).engine.dispose()
    except TROUBLE as error:
        raise unusable(url, error) from error


def storage_at(url: str, tries: int = 5) -> optuna.storages.RDBStorage:
    """Optuna's storage in a database; the tables are made if they do not exist.

    Raises:
        one of TROUBLE: it cannot be reached or used.
    """
    try:
        # A connection is tested before it is used: the server may have been restarted.
        return optuna.storages.RDBStorage(_complete(url), {"pool_pre_ping": True})
    except SQLAlchemyError as error:
        is_race = isinstance(error, IntegrityError) or "already exists" in str(error)
        if not is_race or not tries:
            raise
    time.sleep(0.2)  # another driver makes the tables at this moment
    return storage_at(url, tries - 1)


def _complete(text: str) -> str:
    """The URL with what it leaves out: the driver that is installed, and limits to waiting."""
    if not text.startswith("postgres"):
        return text
    url = sql.make_url(text)
    if url.drivername in ("postgresql", "postgres"):
        has_old = importlib.util.find_spec("psycopg2") is not None
        url = url.set(drivername=f"postgresql+psycopg{2 if has_old else ''}")
    if url.get_driver_name().startswith("psycopg"):
        url = url.set(query={**_PATIENCE, **url.query})
    return url.render_as_string(hide_password=False)


def unusable(url: str, error: Exception) -> RunError:
    """What to say of a database that cannot be used."""
    package = "pip install 'torch-autocompile[postgres]' brings the one for PostgreSQL"
    return RunError(
        f"the study database {without_password(url)} cannot be used",
        first_line(error) if _read(url) else _NOT_READ,
        *([package] if isinstance(error, ImportError) else []),
        hint="another --storage, or none: the run then keeps its own database",
    )


def without_password(url: str) -> str:
    """The URL as messages name it; no more than its kind if its password may be anywhere."""
    if (found := _read(url)) is None:
        kind = re.match(r"[\w+]+://", url)
        return f"{kind[0] if kind else ''}***"
    hidden = dict.fromkeys(filter(_SECRET.search, found.query), "***")
    if not hidden and not found.password:
        return url
    return found.update_query_dict(hidden).render_as_string().replace("%2A%2A%2A", "***")


def _read(url: str) -> sql.URL | None:
    """The parts of a URL; None if it is none, or has an @ that may be of its password."""
    try:
        found = sql.make_url(url)
    except (ArgumentError, ValueError):
        return None
    return None if found.password and url.count("@") > 1 else found


def first_line(error: BaseException) -> str:
    """The first line of what the database said."""
    while error.__cause__ is not None:  # the database's message, not Optuna's
        error = error.__cause__
    return next(iter(str(error).splitlines()), type(error).__name__)[:160]
