"""A database of the user's: its URL in messages, and a real PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from fakes import FakeExecutor
from scripts import Listener, is_best, script, tuned

from autocompile.errors import RunError
from autocompile.execute.executor import Ending
from autocompile.search import optuna_study


def test_a_storage_of_the_users_that_cannot_be_used_is_one_paragraph(
    target: Path,
) -> None:
    for url in (
        "sqlite:////nowhere/at/all.db",
        "postgresql://nobody@localhost/none",
        "rubbish",
    ):
        with pytest.raises(RunError, match="cannot be used") as caught:
            tuned(target, storage=url, run_dir=f"r{len(url)}")
        assert "another --storage" in caught.value.text()


def test_a_driver_that_is_missing_is_to_be_installed() -> None:
    with pytest.raises(RunError, match="cannot be used") as caught:
        optuna_study.demand_usable("oracle+oracledb://nobody@localhost/none")
    assert "No module named 'oracledb'" in caught.value.text()


def test_a_password_is_not_shown(target: Path) -> None:
    url = "postgresql://tuner:secret@127.0.0.1:1/none"
    with pytest.raises(RunError, match=r"postgresql://\*\*\*") as caught:
        tuned(target, storage=url)
    assert "secret" not in caught.value.text()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://h/db?user=u&password=secret", "postgresql://***"),
        ("postgresql://u:s/secret@h/db", "postgresql://***"),
        ("postgresql://u:s?secret@h/db", "postgresql://***"),
        ("mssql://?odbc_connect=PWD%3Dsecret", "mssql://***"),
        ("postgresql://u:s@secret@h/db", "postgresql://***"),
        ("postgresql://u:s@s/secret@h/db", "postgresql://***"),
        ("postgresql://u:secret/h/db", "postgresql://***"),
        ("u:secret@h", "***"),
        ("sqlite:////tmp/a@b/my runs.db", "sqlite:////tmp/a@b/my runs.db"),
    ],
)
def test_a_password_is_not_shown_wherever_it_is(url: str, shown: str) -> None:
    assert optuna_study.without_password(url) == shown


def test_what_sqlalchemy_says_of_a_url_that_it_cannot_read_is_not_shown() -> None:
    url = "postgresql://u:secret/h/db"
    with pytest.raises(RunError, match="written %40") as caught:
        optuna_study.demand_usable(url)
    assert "secret" not in caught.value.text()


def test_a_host_that_does_not_answer_is_told_before_the_probe(target: Path) -> None:
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        late = threading.Timer(20.0, silent.shutdown, (socket.SHUT_RDWR,))
        late.start()
        url, executor = (
            f"postgresql+psycopg://tuner@127.0.0.1:{port}/none",
            FakeExecutor(script),
        )
        with pytest.raises(RunError, match=f"{port}/none cannot be used") as caught:
            tuned(target, executor, storage=url)
        assert late.is_alive()
        late.cancel()
    assert "timeout expired" in caught.value.text()
    assert not executor.requests and not Path("runs").exists()


# A server -----------------------------------------------------------------------------------------


def _as_postgres() -> dict[str, Any]:
    """PostgreSQL does not run as root."""
    return {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}


class Server:
    """A PostgreSQL in a folder, which only this machine can reach."""

    def __init__(self, programs: Path, place: Path) -> None:
        self.place = place
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        initdb = [programs / "initdb", "-D", "data", "-A", "trust", "-U", "tuner"]
        subprocess.run(
            initdb, check=True, cwd=place, stdout=subprocess.DEVNULL, **_as_postgres()
        )
        self._command = [
            programs / "postgres",
            "-D",
            "data",
            "-p",
            port,
            "-h",
            "127.0.0.1",
        ]
        self.url = f"postgresql+psycopg://tuner@127.0.0.1:{port}/postgres"

    def start(self) -> None:
        with (self.place / "log").open("a") as log:
            self._running = subprocess.Popen(
                [*self._command, "-k", self.place],
                cwd=self.place,
                stdout=log,
                stderr=log,
                **_as_postgres(),
            )
        _demand_answer(self.url)

    def stop(self) -> None:
        self._running.send_signal(signal.SIGINT)  # ends its sessions and then itself
        self._running.wait(30)


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("psycopg")
    programs = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    place = Path(tempfile.mkdtemp(prefix="autocompile-postgres-", dir="/tmp"))
    if os.geteuid() == 0:
        shutil.chown(place, "postgres", "postgres")
    made = Server(programs, place)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(place)


def _demand_answer(url: str) -> None:
    engine = sqlalchemy.create_engine(url)
    for _ in range(100):
        with contextlib.suppress(sqlalchemy.exc.OperationalError), engine.connect():
            break
        time.sleep(0.1)
    else:
        pytest.fail("PostgreSQL does not answer")
    engine.dispose()


def numbers(url: str) -> list[int]:
    """Of the trials in the one study of a database."""
    (study,) = optuna.get_all_study_summaries(url)
    rows = optuna.load_study(study_name=study.study_name, storage=url).get_trials()
    return sorted(row.user_attrs["number"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_server_that_is_restarted_is_used_again_and_without_it_the_search_goes_on(
    target: Path, server: Server, comes_back: bool
) -> None:
    show, stops = Listener(), iter([server.stop])

    def losing(request: Mapping[str, Any]) -> Ending:
        if is_best(request) and (stop := next(stops, None)):
            stop()
            if comes_back:
                server.start()
        return script(request)

    result = tuned(target, losing, storage=server.url, progress=show)
    assert result.config["forward"].mode == "max-autotune"
    if not comes_back:
        (warning,) = show.warnings
        assert (
            "Connection refused" in warning
            and "--resume adds the missing rows" in warning
        )
        show.warnings.clear()
        server.start()
        tuned(target, space=None, storage=server.url, resume=True, progress=show)
    assert not show.warnings
    assert numbers(server.url) == sorted(
        r.number for r in result.trials if r.role == "search"
    )
