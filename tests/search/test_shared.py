"""Several drivers on one study: leases, what they learn of each other, and a real PostgreSQL."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from conftest import Clock
from fakes import FakeExecutor, failed, measured, probed
from scripts import Listener

from autocompile.api import tune
from autocompile.errors import RunError, UsageError
from autocompile.execute.executor import Ending
from autocompile.result import Result
from autocompile.search import leases as leasing
from autocompile.search.leases import Leases
from autocompile.settings.config import DEFAULT_INDUCTOR, CompileConfig
from autocompile.space.space import SearchSpace
from autocompile.store.record import Outcome, Step

BEST = CompileConfig(mode="max-autotune")
SPACE = SearchSpace(("eager", "inductor", "aot_eager"), batch_sizes=(4,), freezing=(False, True))


def script(request: Mapping[str, Any]) -> Ending:
    config = request["config"]
    if config["backend"] == "aot_eager":
        return failed("crashed")
    if config["backend"] == "eager":
        return measured(1.0)
    return measured(1.2 + 0.4 * (config["mode"] == "max-autotune") - 0.1 * config["freezing"])


class Driver:
    """A run that shares the study of a database, and what it has tried."""

    def __init__(self, target: Path, url: str, run: str, **options: Any) -> None:
        executor, probe = options.pop("executor", FakeExecutor), options.pop("probe", None)
        self.executor = executor(options.pop("script", script), probe)
        options = {"space": SPACE, "study": "ours", "effort": "full", **options}
        self.result: Result = tune(
            target, executor=self.executor, storage=url, run_dir=f"runs/{run}", **options
        )

    @property
    def tried(self) -> set[CompileConfig]:
        found = (CompileConfig.from_dict(r["config"]) for r in self.executor.requests)
        return set(found)


@pytest.fixture
def url(target: Path) -> str:
    return f"sqlite:///{target.parent}/shared.db"


# Leases -------------------------------------------------------------------------------------------


def test_a_lease_is_of_one_driver_until_it_is_not_renewed_for_long(url: str) -> None:
    engine, now = sqlalchemy.create_engine(url), 0.0
    one, two, three = (Leases(engine, "s", name, lambda: now) for name in ("1", "2", "3"))
    assert one.claim("a") and not two.claim("a") and two.claim("b")
    assert two.others() == {"a"} and one.others() == {"b"} and three.others() == {"a", "b"}
    for _ in range(10):
        now += leasing.EXPIRY_S / 3
        one.keep()
        assert two.others() == {"a"} and not two.take_over("a")
    now += leasing.EXPIRY_S
    assert two.others() == {"a"} and three.others() == {"a", "b"}  # as they were seen before
    assert two.take_over("a") and not three.take_over("a")
    assert three.others() == {"a", "b"} and not one.others() - {"a", "b"}
    one.release("a")  # no longer its own
    assert not three.claim("a")
    two.release("a")
    assert three.claim("a")
    assert Leases(engine, "another", "1").claim("b")


def test_what_the_first_driver_says_stands(url: str) -> None:
    engine = sqlalchemy.create_engine(url)
    assert Leases(engine, "s", "1").agreed("x") == "x"
    other = Leases(engine, "s", "2")
    assert other.agreed("y") == "x" and other.others() == set()


# Drivers ------------------------------------------------------------------------------------------


def test_what_one_driver_has_tried_another_does_not_unless_it_may_be_the_best(
    target: Path, url: str
) -> None:
    first = Driver(target, url, "first")
    assert BEST in first.tried and CompileConfig("aot_eager") in first.tried
    second = Driver(target, url, "second")
    assert CompileConfig("aot_eager") not in second.tried
    assert len(second.tried) < len(first.tried)
    assert first.result.config == second.result.config == {"forward": BEST}
    assert second.result.best["forward"].measurement is not None
    rows = optuna.load_study(study_name="ours", storage=url).get_trials()
    assert len({row.user_attrs["driver"] for row in rows}) == 2
    failures = [row for row in rows if row.user_attrs["outcome"] == "crashed"]
    assert len(failures) == len({row.user_attrs["setting"] for row in failures})


def test_the_best_of_others_is_tried_before_the_budget_ends(target: Path, url: str) -> None:
    clock = Clock()
    fast: list[CompileConfig] = []  # the first that is tried beside what every driver tries

    def scripted(request: Mapping[str, Any]) -> Ending:
        clock.work(1.0 if "repeats" in request else 10.0)
        config = CompileConfig.from_dict(request["config"])
        if config.backend == "eager":
            return measured(1.0)
        if config != DEFAULT_INDUCTOR and not fast:
            fast.append(config)
        return measured(1.6 if config in fast else 1.2)

    modes = {mode: mode for mode in ("default", "max-autotune", *map("mode-{}".format, range(6)))}
    options: dict[str, Any] = {
        "space": SearchSpace(("eager", "inductor"), batch_sizes=(4,)),
        "probe": probed(modes=modes),
        "script": scripted,
    }
    first = Driver(target, url, "first", trials=4, **options)
    options |= {"budget_s": 60.0, "clock": clock.monotonic}
    second = Driver(target, url, "second", **options)
    assert fast[0] in first.tried and fast[0] in second.tried
    assert len(second.tried) < 6
    assert second.result.config == {"forward": fast[0]}


def test_side_by_side_no_more_than_the_best_of_others_are_tried_again(
    target: Path, url: str
) -> None:
    names = [f"mode-{number}" for number in range(6)]

    def scripted(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        if config["mode"] in names:
            return measured(1.60 - 0.02 * names.index(config["mode"]))
        return measured(1.0 + 0.2 * (config["backend"] == "inductor"))

    options: dict[str, Any] = {
        "space": SearchSpace(
            ("eager", "inductor"), batch_sizes=(4,), fullgraph=(False,), freezing=(False,)
        ),
        "probe": probed(modes={name: name for name in ("default", *names)}),
        "script": scripted,
    }
    first = Driver(target, url, "first", **options)
    assert {config.mode for config in first.tried} == {"default", *names}
    four = functools.partial(FakeExecutor, slots=4)
    second = Driver(target, url, "second", executor=four, **options)
    assert {config.mode for config in second.tried} == {"default", *names[:3]}


def test_of_settings_with_the_same_code_one_is_tried_again(target: Path, url: str) -> None:
    names = [f"mode-{number}" for number in range(6)]

    def scripted(request: Mapping[str, Any]) -> Ending:
        if (mode := request["config"]["mode"]) in names:
            number = names.index(mode)
            code = str(max(2, number))
            if twin := request.get("known_codes", {}).get(code):
                return Ending(Outcome.OK, Step.EXIT, payload={"same_code_as": twin}, wall_s=1.0)
            return measured(1.60 - 0.02 * number, code=code)
        return measured(1.0 + 0.2 * (request["config"]["backend"] == "inductor"))

    options: dict[str, Any] = {
        "space": SearchSpace(
            ("eager", "inductor"), batch_sizes=(4,), fullgraph=(False,), freezing=(False,)
        ),
        "probe": probed(modes={name: name for name in ("default", *names)}),
        "script": scripted,
    }
    Driver(target, url, "first", **options)
    tried = {config.mode for config in Driver(target, url, "second", **options).tried}
    assert len(tried & set(names[:3])) == 1
    assert tried & set(names[3:]) == {*names[3:5]}


@pytest.mark.parametrize(
    ("outcome", "is_tried"),
    [
        ("out_of_memory", True),
        ("timeout", True),
        ("infrastructure", True),
        ("compile_error", False),
    ],
)
def test_a_failure_that_the_machine_may_have_caused_is_tried_by_others_too(
    target: Path, url: str, outcome: str, is_tried: bool
) -> None:
    def failing(request: Mapping[str, Any]) -> Ending:
        return failed(outcome) if request["config"]["mode"] == BEST.mode else script(request)

    assert BEST in Driver(target, url, "first", script=failing).tried
    assert (BEST in Driver(target, url, "second").tried) is is_tried


def test_a_setting_that_another_driver_is_at_is_left_to_it_until_it_has_died(
    target: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing, "EXPIRY_S", 1.0)
    inner: list[Driver] = []

    def meanwhile(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "aot_eager" and not inner:
            began = time.monotonic()
            inner.append(Driver(target, url, "inner"))
            assert time.monotonic() - began >= 1.0
        return script(request)

    outer = Driver(target, url, "outer", script=meanwhile)
    (other,) = inner
    # The outer one stands still meanwhile, as if it had died in its trial.
    assert any(config.backend == "aot_eager" for config in other.tried)
    assert outer.result.config == other.result.config == {"forward": BEST}


def test_a_run_that_goes_on_has_its_rows_once(target: Path, url: str) -> None:
    Driver(target, url, "first", trials=3)
    Driver(target, url, "second", trials=2)
    Driver(target, url, "first", resume=True, space=None)
    rows = optuna.load_study(study_name="ours", storage=url).get_trials()
    often = Counter((row.user_attrs["driver"], row.user_attrs["number"]) for row in rows)
    assert set(often.values()) == {1}


def test_drivers_that_are_unlike_are_refused(target: Path, url: str) -> None:
    Driver(target, url, "first")
    machine = {**probed().payload["environment"], "device_name": "another CPU"}
    with pytest.raises(RunError, match="is of another device_name") as caught:
        Driver(target, url, "second", probe=probed(environment=machine))
    assert "a CPU there, another CPU here" in caught.value.text()
    with pytest.raises(RunError, match="is of another list of settings") as caught:
        Driver(target, url, "third", space=SearchSpace(("eager", "inductor"), batch_sizes=(4,)))
    assert "that the other has not (aot_eager in forward at batch size 4" in caught.value.text()
    with pytest.raises(UsageError, match="no storage names one"):
        tune(target, study="ours", executor=FakeExecutor(script))


def test_without_its_database_a_driver_goes_on_alone(target: Path, url: str) -> None:
    Driver(target, url, "first", trials=2)
    show = Listener()

    def losing(request: Mapping[str, Any]) -> Ending:
        if request["config"]["mode"] == "max-autotune":
            with sqlalchemy.create_engine(url).begin() as other:
                other.execute(sqlalchemy.text("DROP TABLE IF EXISTS autocompile_leases"))
        return script(request)

    second = Driver(target, url, "second", script=losing, progress=show)
    (warning,) = show.warnings
    assert "goes on alone" in warning and "no such table" in warning
    assert second.result.config == {"forward": BEST}
    assert CompileConfig("aot_eager") in second.tried


def test_a_password_is_not_shown(target: Path) -> None:
    url = "postgresql://tuner:secret@127.0.0.1:1/none"
    with pytest.raises(RunError, match=r"tuner:\*\*\*@127") as caught:
        Driver(target, url, "first")
    assert "secret" not in caught.value.text()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://h/db?user=u&password=secret", "postgresql://h/db?password=***&user=u"),
        ("postgresql://u:s/secret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:s?secret@h/db", "postgresql://u:***@h/db"),
        ("mssql://?odbc_connect=PWD%3Dsecret", "mssql://?odbc_connect=***"),
        ("postgresql://u:s@secret@h/db", "postgresql://***"),
        ("postgresql://u:s@s/secret@h/db", "postgresql://***"),
        ("postgresql://u:secret/h/db", "postgresql://***"),
        ("u:secret@h", "***"),
        ("sqlite:////tmp/a@b/my runs.db", "sqlite:////tmp/a@b/my runs.db"),
    ],
)
def test_a_password_is_not_shown_wherever_it_is(url: str, shown: str) -> None:
    assert leasing.without_password(url) == shown


def test_what_sqlalchemy_says_of_a_url_that_it_cannot_read_is_not_shown() -> None:
    url = "postgresql://u:secret/h/db"
    with pytest.raises(RunError, match="written %40") as caught:
        leasing.demand_usable(url)
    assert "secret" not in caught.value.text()


# A server -----------------------------------------------------------------------------------------


DRIVER = """
import sys
import time
from pathlib import Path

sys.path[:0] = {folders!r}
from autocompile.search import leases
from test_shared import Driver, script

from fakes import FakeExecutor

leases.EXPIRY_S = 2.0
name, url = sys.argv[1:]

class Executor(FakeExecutor):
    def wait(self, timeout_s):
        time.sleep(0.05)
        last = self.requests[-1]["config"]["backend"] if self.requests else ""
        if name == "dying" and last == "aot_eager":  # never ends
            Path("at_it").write_text("")
            return []
        return super().wait(timeout_s)

driver = Driver(Path("net.py"), url, name, executor=Executor)
print(driver.result.config["forward"].label())
"""


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
        subprocess.run(initdb, check=True, cwd=place, stdout=subprocess.DEVNULL, **_as_postgres())
        self._command = [programs / "postgres", "-D", "data", "-p", port, "-h", "127.0.0.1"]
        self.url = f"postgresql://tuner@127.0.0.1:{port}/postgres"

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
    engine = sqlalchemy.create_engine(with_psycopg(url))
    for _ in range(100):
        with contextlib.suppress(sqlalchemy.exc.OperationalError), engine.connect():
            break
        time.sleep(0.1)
    else:
        pytest.fail("PostgreSQL does not answer")
    engine.dispose()


def with_psycopg(url: str) -> str:
    return url.replace("://", "+psycopg://")


@pytest.mark.slow
def test_on_a_server_two_drivers_share_and_one_takes_over_what_the_other_died_at(
    target: Path, server: Server
) -> None:
    folders = [*map(str, Path(__file__).parents[:2])]
    Path("driver.py").write_text(DRIVER.format(folders=folders))

    def started(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "driver.py", name, server.url]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    dying = started("dying")
    while not Path("at_it").exists():
        assert dying.poll() is None
        time.sleep(0.05)
    living = started("living"), started("another")
    time.sleep(8.0)  # while it is alive, others leave its setting to it
    assert [driver.poll() for driver in (dying, *living)] == [None] * 3
    assert not times(server.url, "crashed")
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    labels = [driver.communicate(timeout=60)[0].splitlines()[-1] for driver in living]
    assert labels == [BEST.label()] * 2
    assert set(times(server.url, "crashed").values()) == {1}
    worked = times(server.url, "ok")
    everyones = {CompileConfig("eager").label(), DEFAULT_INDUCTOR.label()}
    assert {worked.pop(label) for label in everyones} == {3}
    assert worked.pop(BEST.label()) == 3  # all race it
    frozen = CompileConfig(freezing=True).label()
    assert worked[frozen] == 1


def times(url: str, outcome: str) -> Counter[str]:
    """How often each setting has ended with an outcome, over all drivers."""
    rows = optuna.load_study(study_name="ours", storage=with_psycopg(url)).get_trials()
    return Counter(
        row.user_attrs["setting"] for row in rows if row.user_attrs["outcome"] == outcome
    )


@pytest.mark.slow
def test_drivers_that_start_at_one_instant_make_the_tables_once(
    target: Path, server: Server
) -> None:
    admin = sqlalchemy.create_engine(with_psycopg(server.url), isolation_level="AUTOCOMMIT")
    for number in range(4):
        with admin.connect() as connection:
            connection.execute(sqlalchemy.text(f"CREATE DATABASE new{number}"))
        url = server.url.replace("/postgres", f"/new{number}")
        gate = threading.Barrier(4)

        def started(name: str, url: str = url, gate: threading.Barrier = gate) -> Driver:
            gate.wait()
            return Driver(target, url, name, trials=3, progress="none")

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(started, [f"{number}-{letter}" for letter in "abcd"]))
        assert all(driver.result.config for driver in found)
        (study,) = optuna.get_all_study_summaries(with_psycopg(url))
        assert study.study_name == "ours"
    admin.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_server_that_is_restarted_is_used_again_and_without_it_a_driver_goes_on_alone(
    target: Path, server: Server, comes_back: bool
) -> None:
    show, stops = Listener(), iter([server.stop])

    def losing(request: Mapping[str, Any]) -> Ending:
        if request["config"]["mode"] == "max-autotune" and (stop := next(stops, None)):
            stop()
            if comes_back:
                server.start()
        return script(request)

    driver = Driver(target, server.url, "first", script=losing, progress=show)
    assert driver.result.config == {"forward": BEST}
    assert CompileConfig("aot_eager") in driver.tried
    if comes_back:
        assert not show.warnings
        assert times(server.url, "ok")[BEST.label()] == 1
    else:
        (warning,) = show.warnings
        assert "goes on alone" in warning and "Connection refused" in warning


def test_a_host_that_does_not_answer_is_told_before_the_probe(target: Path) -> None:
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        late = threading.Timer(20.0, silent.shutdown, (socket.SHUT_RDWR,))
        late.start()
        url, executor = f"postgresql://tuner@127.0.0.1:{port}/none", FakeExecutor(script)
        with pytest.raises(RunError, match=f"{port}/none cannot be used") as caught:
            tune(target, executor=executor, storage=url, study="ours")
        assert late.is_alive()
        late.cancel()
    assert "timeout expired" in caught.value.text()
    assert not executor.requests and not Path("runs").exists()
