"""The database that ``--storage`` names: opens it, and tells of it without its password."""

from __future__ import annotations

import re
import time

import optuna
import sqlalchemy as sql
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from autocompile.errors import RunError

__all__ = ["TROUBLE", "demand_usable", "first_line", "storage_at", "unusable", "without_password"]

TROUBLE = (optuna.exceptions.OptunaError, SQLAlchemyError, OSError, ImportError, ValueError)
# Of PostgreSQL's client: seconds to connect, and ms after which a server that is gone is given up.
_PATIENCE = {"connect_timeout": "5", "tcp_user_timeout": "10000"}
_SECRET = re.compile("pass|pwd|secret|token|odbc", re.IGNORECASE)  # in a URL's query
_NOT_READ = "it is not a database URL; in a password, @ : / ? are written %40 %3A %2F %3F"


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
    parts = sql.make_url(url)
    if parts.get_driver_name().startswith("psycopg"):
        parts = parts.set(query={**_PATIENCE, **parts.query})
    try:
        # A connection is tested before it is used: the server may have been restarted.
        return optuna.storages.RDBStorage(
            parts.render_as_string(hide_password=False), {"pool_pre_ping": True}
        )
    except SQLAlchemyError as error:
        is_race = isinstance(error, IntegrityError) or "already exists" in str(error)
        if not is_race or not tries:
            raise
    time.sleep(0.2)  # another run makes the tables at this moment
    return storage_at(url, tries - 1)


def unusable(url: str, error: Exception) -> RunError:
    """What to say of a database that cannot be used."""
    driver = "install it, or name the driver that is there, as in postgresql+psycopg://USER@HOST/DB"
    return RunError(
        f"the study database {without_password(url)} cannot be used",
        first_line(error) if _read(url) else _NOT_READ,
        *([driver] if isinstance(error, ImportError) else []),
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
