"""A run for each accelerator type, on a scripted cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeExecutor, ScriptedStations, failed, probed
from scripts import SPACE, Request, script
from test_station import T4, node

import autocompile
from autocompile.cli.tune import _end_all
from autocompile.cluster import tune_all as commands
from autocompile.cluster.dispatch import Link, Message
from autocompile.cluster.links import Place, connected, demand_head
from autocompile.cluster.tune_all import OnCluster, tune_all
from autocompile.errors import TargetError, UsageError
from autocompile.execute.executor import Ending
from autocompile.request import Request as Asked


class FakeCluster:
    """Two nodes with a GPU of another type each; what stations do is scripted by type."""

    def __init__(self) -> None:
        self.opened: dict[str, Mapping[str, Any]] = {}
        self.probes: dict[str, Ending] = {}
        self.script = script
        h100 = {"ray.io/accelerator-type": "H100"}
        self.there = [node("a", T4, GPU=1, CPU=0.5), node("b", h100, GPU=1, CPU=0.5)]
        self.opening: Callable[[str], None] = lambda kind: None
        self._stations: dict[Link, ScriptedStations] = {}

    def nodes(self) -> list[dict[str, Any]]:
        return self.there

    @property
    def alive(self) -> list[str]:
        return [name for stations in self._stations.values() for name in stations.alive]

    def open(self, places: Sequence[Place], message: Mapping[str, Any]) -> list[Link]:
        kind = places[0].kind
        self.opening(kind)
        self.opened[kind] = message
        probe = self.probes.get(kind, probed())
        names = [place.host for place in places]
        stations = ScriptedStations(names, lambda _: FakeExecutor(self.script, probe))
        self._stations |= dict.fromkeys(stations.links, stations)
        return stations.links

    def receive(
        self, links: Sequence[Link], timeout_s: float
    ) -> list[tuple[Link, Message]]:
        return self._stations[links[0]].receive(links, timeout_s)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()

    @contextlib.contextmanager
    def connected(address: str) -> Iterator[FakeCluster]:
        yield made

    monkeypatch.setattr(commands, "connected", connected)
    return made


def tuned(show: str = "none", **more: Any) -> OnCluster:
    return tune_all(Asked("net.py", space=SPACE, ray="auto", **more), show)


def test_each_type_has_a_run_and_lines_that_begin_with_its_name(
    target: Path, fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    target.write_text("import beside")
    target.with_name("beside.py").write_text("")
    found = tuned(show="plain", jobs=3)
    assert (set(found.results), found.folder) == ({"T4", "H100"}, Path("runs/net-0001"))
    for kind in found.results:
        assert (
            autocompile.load(found.folder / kind).config["forward"].mode
            == "max-autotune"
        )
        assert fake.opened[kind]["files"].keys() == {"net.py", "beside.py"}
        assert fake.opened[kind]["jobs"] == 3
    lines = capsys.readouterr().err.splitlines()
    assert {line.split()[0] for line in lines} == {"T4", "H100"}
    (first,) = [line for line in lines if line.startswith("T4 ") and "#0 " in line]
    assert first.endswith("on a")
    assert "<td>H100</td>" in (found.folder / "table.html").read_text("utf-8")


def test_the_start_of_the_stations_is_in_the_budget(
    target: Path, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []
    opened: list[float] = []
    fake.opening = lambda kind: opened.append(time.monotonic())

    def tune_with(request: Asked, parts: Any) -> None:
        began.append(parts.began)
        raise UsageError("enough")

    monkeypatch.setattr(commands.api, "tune_with", tune_with)
    tuned(accelerators=("T4",))
    assert began[0] <= opened[0]


def test_what_fails_on_one_type_leaves_the_others(
    target: Path, fake: FakeCluster
) -> None:
    fake.probes["T4"] = failed("import_error", "import", "no module named x")
    found = tuned()
    assert found.results.keys() == {"H100"}
    error = found.errors["T4"]
    assert isinstance(error, TargetError)
    assert "net.py cannot be imported: no module named x" in error.text()
    assert not found.interrupted


def test_a_defect_on_one_type_hides_no_result_of_another(
    target: Path, fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def opening(kind: str) -> None:
        if kind == "T4":
            raise TypeError("a defect")

    fake.opening = opening
    found = tuned()
    assert found.results.keys() == {"H100"} and (found.folder / "table.html").exists()
    with pytest.raises(TypeError, match="a defect"):
        _end_all(found, None, as_json=False, verbose=False)
    assert (
        "reduce-overhead" in (shown := capsys.readouterr().out)
        or "max-autotune" in shown
    )


def test_two_commands_have_a_folder_each_from_the_start(
    target: Path, fake: FakeCluster
) -> None:
    beside: list[Path] = []
    fake.opening = lambda kind: beside.append(commands._folder("net.py", None, False))
    found = tuned(accelerators=("T4",))
    assert (found.folder, *beside) == (Path("runs/net-0001"), Path("runs/net-0002"))


def test_where_nothing_begins_no_folder_is_left(
    target: Path, fake: FakeCluster
) -> None:
    def opening(kind: str) -> None:
        raise UsageError("no station has started")

    fake.opening = opening
    assert tuned().errors.keys() == {"T4", "H100"}
    assert not list(Path().glob("runs/*"))


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """A job in the background is started with SIGINT ignored, a program in a terminal is not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_reports_what_is_known_of_each_type_and_resume_goes_on(
    target: Path, fake: FakeCluster
) -> None:
    sent: list[int] = []

    def interrupting(request: Request) -> Ending:
        if request["number"] >= 2 and not sent:
            sent.append(request["number"])
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.0)
        return script(request)

    fake.script = interrupting
    before = tuned(effort="full")
    assert before.interrupted
    counts = {kind: len(result.trials) for kind, result in before.results.items()}
    fake.script = script
    after = tuned(effort="full", resume=True)
    assert after.folder == before.folder
    assert not after.interrupted
    for kind, result in after.results.items():
        assert len(result.trials) > counts.get(kind, 0)
        assert result.config["forward"].mode == "max-autotune"


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_starts_none_of_the_types_that_wait_for_the_machine(
    target: Path, fake: FakeCluster
) -> None:
    fake.there = [node("a", T4, GPU=1, CPU=1)]

    def interrupting(request: Request) -> Ending:
        os.kill(os.getpid(), signal.SIGINT)
        return script(request)

    fake.script = interrupting
    assert tuned(accelerators=("T4", "cpu")).interrupted
    assert fake.opened.keys() == {"T4"}


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_while_threads_start_reaches_every_type(
    target: Path, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    found = tuned(effort="full")
    assert found.interrupted
    assert found.results.keys() | found.errors.keys() == {"T4", "H100"}
    assert signal.getsignal(signal.SIGINT) is handler
    assert not fake.alive


@pytest.mark.usefixtures("_ctrl_c")
def test_ctrl_c_while_stations_start_ends_the_run_once_they_have(
    target: Path, fake: FakeCluster
) -> None:
    def interrupted(kind: str) -> None:
        if kind == "T4":
            time.sleep(0.3)  # until the main thread waits
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.0)

    fake.opening = interrupted
    found = tuned()
    assert isinstance(found.errors.get("T4"), KeyboardInterrupt)
    assert not fake.alive


def test_what_is_about_this_machine_is_refused(target: Path, fake: FakeCluster) -> None:
    with pytest.raises(UsageError, match="no node of the cluster has A100"):
        tuned(accelerators=("A100",))
    assert not fake.opened


def test_where_no_cluster_is_the_command_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, work: Path
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(work))
    with pytest.raises(UsageError, match="no Ray cluster runs on this machine"):
        demand_head("auto")
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        demand_head(address)
    (work / "ray").mkdir()
    (work / "ray" / "ray_current_cluster").write_text(f"{address}\n")
    for asked in ("auto", address):
        with pytest.raises(UsageError, match=f"no Ray cluster answers at {address}"):
            demand_head(asked)
    for wrong in ("127.0.0.1", "ray://127.0.0.1:10001", "local", "127.0.0.1:99999999"):
        with pytest.raises(UsageError, match="Ray cluster"):
            demand_head(wrong)


def test_another_cluster_than_the_one_of_this_process_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray")
    here = types.SimpleNamespace(gcs_address="10.0.0.1:6379")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: here)
    words = "is connected to the Ray cluster at 10.0.0.1:6379, not to 10.0.0.2:6379"
    with pytest.raises(UsageError, match=words), connected("10.0.0.2:6379"):
        pass
