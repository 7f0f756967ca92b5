"""Opens the database that ``--storage`` names."""

from __future__ import annotations

import importlib.util
import re
import time

import optuna
import sqlalchemy
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from autocompile.errors import RunError

__all__ = [
    "TROUBLE",
    "demand_usable",
    "first_line",
    "storage_at",
    "unusable",
    "without_password",
]

TROUBLE = (optuna.exceptions.OptunaError, SQLAlchemyError, OSError, ImportError, ValueError)
# Of PostgreSQL's client: seconds to connect, and ms after which a server that is gone is given up.
_PATIENCE = {"connect_timeout": "5", "tcp_user_timeout": "10000"}


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
    url = sqlalchemy.make_url(text)
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
        first_line(error),
        *([package] if isinstance(error, ImportError) else []),
        "all finished trials are safe in the run folder; the database is only a copy",
        hint="another --storage, or none: the run then keeps its own database",
    )


def without_password(url: str) -> str:
    """The URL as messages name it."""
    return re.sub(r"(?<=://)([^:/@]*):[^/]*@", r"\1:***@", url)


def first_line(error: BaseException) -> str:
    """The first line of what the database said."""
    while error.__cause__ is not None:  # the database's message, not Optuna's
        error = error.__cause__
    return next(iter(str(error).splitlines()), type(error).__name__)[:160]
