"""A station's process with real trials, its messages, its folder, and what Ray's workers change."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TARGETS

from autocompile.cluster import agreement
from autocompile.cluster.paths import StationFolder
from autocompile.cluster.pipe import Pipe, restored
from autocompile.cluster.places import places_of, side_by_side
from autocompile.cluster.shipping import shipment_of
from autocompile.cluster.station import Station
from autocompile.cluster.wire import (
    Do,
    Say,
    decode,
    encode,
    ending_of,
    job_of,
    sent_ending,
    sent_job,
)
from autocompile.errors import UsageError
from autocompile.execute.executor import Ending, Event, Job
from autocompile.protocol.requests import Header, TimingLimits, TrialRequest
from autocompile.runtime import machine
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome, Step

SHORT = TimingLimits(half_width=0.5, max_s=0.1, front_s=0.1, block_s=0.002)


# Messages ----------------------------------------------------------------------------------------


def test_jobs_and_endings_come_back_as_they_were_sent() -> None:
    job = Job(3, Path("run/trials/0003"), 60.0, 30.0, environment={"A": "b"}, fresh=True)
    sent = json.loads(json.dumps(sent_job(job)))
    assert "folder" not in sent
    assert job_of(sent, Path("there"), toolchain=None) == Job(
        3, Path("there"), 60.0, 30.0, environment={"A": "b"}, fresh=True
    )
    ending = Ending(
        Outcome.TIMEOUT, Step.COMPILE, "slow", {"graphs": 1}, 2.0, {"compile": 1.0},
        (("import", 1.0, 2.0),), ((3.0, 4.0),), "stack", ["forked"],
    )  # fmt: skip
    assert ending_of(json.loads(json.dumps(sent_ending(ending)))) == ending


@pytest.mark.parametrize("line", ["3", "{}", '{"say": "shout"}', '{"do": "stepped"}'])
def test_what_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no message|is not a valid"):
        decode(line)


# What Ray changes --------------------------------------------------------------------------------


def test_the_environment_is_that_of_before_ray_with_its_gpus() -> None:
    now = {"OMP_NUM_THREADS": "1", "RAY_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/h"}
    assert restored(now, {"HOME": "/h"}) == {"CUDA_VISIBLE_DEVICES": "3", "HOME": "/h"}
    before = {"OMP_NUM_THREADS": "8", "RAY_ADDRESS": "auto", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert restored(now, before) == {
        "OMP_NUM_THREADS": "8",
        "RAY_ADDRESS": "auto",
        "CUDA_VISIBLE_DEVICES": "3",
        "HOME": "/h",
    }


# Places ------------------------------------------------------------------------------------------


def node(name: str, labels: dict[str, str] | None = None, **resources: float) -> dict[str, Any]:
    own = {key.replace("__", ":"): value for key, value in resources.items()}
    return {
        "NodeID": name,
        "Alive": True,
        "NodeManagerHostname": name,
        "Resources": own,
        "Labels": labels or {},
    }


T4 = {"ray.io/accelerator-type": "T4"}


def test_a_station_for_each_gpu_with_its_share_and_one_for_a_node_of_cpus() -> None:
    nodes = [
        node("head"),
        node("a", T4, GPU=2, CPU=9),
        node("b", GPU=1, CPU=4, accelerator_type__H100=1),
        node("c", CPU=8),
    ]
    found = places_of(nodes, None)
    assert {k: [(p.node, p.gpus, p.cpus) for p in its] for k, its in found.items()} == {
        "T4": [("a", 1, 4.0), ("a", 1, 4.0)],
        "H100": [("b", 1, 4.0)],
        "cpu": [("c", 0, 8.0)],
    }
    assert [*places_of(nodes, ["h100", "T4"])] == ["H100", "T4"]
    assert side_by_side(found) == [["T4", "H100", "cpu"]]


def test_types_that_share_a_node_take_turns() -> None:
    nodes = [node("a", T4, GPU=1, CPU=4)]
    assert side_by_side(places_of(nodes, ["T4", "cpu"])) == [["T4"], ["cpu"]]


def test_a_type_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError) as error:
        places_of([node("a", T4, GPU=1, CPU=4), {**node("b", CPU=4), "Alive": False}], ["A100"])
    assert "no node of the cluster has A100" in error.value.text()
    assert "there are: T4 (1), cpu (1)" in error.value.text()
    assert "try: --accelerators T4,cpu" in error.value.text()


def test_a_cluster_without_gpus_and_cpus_is_refused() -> None:
    with pytest.raises(UsageError, match="no node of the cluster has GPUs or a whole CPU") as error:
        places_of([node("head"), node("b", CPU=0.5)], None)
    assert "2 of its nodes are alive" in error.value.text()


def test_what_makes_stations_alike_is_what_a_probe_describes() -> None:
    described = machine.describe(torch.device("cpu"))
    of_gpus = {"driver", "power_limit_w"}
    assert set(agreement._ALIKE) - of_gpus <= described.keys()


# What is shipped ---------------------------------------------------------------------------------


def test_a_target_goes_with_what_it_imports_from_beside_it(work: Path) -> None:
    (work / "lib" / "parts").mkdir(parents=True)
    for name, text in {
        "model.py": "import torch, helper\nfrom lib.parts import layers",
        "helper.py": "import missing",
        "unused.py": "",
        "lib/__init__.py": "",
        "lib/parts/__init__.py": "",
        "lib/parts/layers.py": "from . import sizes\nfrom .. import common",
        "lib/parts/sizes.py": "",
        "lib/common.py": "",
    }.items():
        (work / name).write_text(text)
    shipment = shipment_of("model.py:net")
    assert sorted(shipment.files) == [
        *("helper.py", "lib/__init__.py", "lib/common.py", "lib/parts/__init__.py"),
        *("lib/parts/layers.py", "lib/parts/sizes.py", "model.py"),
    ]
    assert (shipment.place, shipment.target) == (str(work), "model.py:net")
    assert sorted(shipment_of("lib.parts.layers:f").files)[-1] == "lib/parts/sizes.py"
    assert shipment_of("torch.nn:Linear").files == {}


def test_a_target_elsewhere_is_named_by_its_whole_path(work: Path) -> None:
    (work / "there").mkdir()
    (work / "there" / "model.py").write_text("")
    (work / "here").mkdir()
    os.chdir(work / "here")
    shipment = shipment_of("../there/model.py")
    assert shipment.files == {"model.py": ""}
    assert shipment.place == str(work / "there")
    assert shipment.target == str(work / "there" / "model.py")


def test_a_request_gets_the_paths_of_the_station_and_users_read_their_own(work: Path) -> None:
    files = {"model.py": base64.b64encode(b"x = 1").decode()}
    folder = StationFolder(files, "/home/me")
    try:
        side = {"cache": "/home/me/runs/x/cache/0003", "is_warm": True, "exported": None}
        request = {"target": "/home/me/model.py:f", "sides": [side], "toolchain": "/home/me/t"}
        made = folder.prepare(7, request)
        found = json.loads((made / "request.json").read_text())
        assert found["target"] == f"{folder.path}/files/model.py:f"
        assert found["sides"][0] == {**side, "cache": f"{folder.path}/cache/0003", "is_warm": False}
        assert Path(found["sides"][0]["cache"]).is_dir()
        side["exported"] = {"code": "sys.path.insert(0, '/home/me')"}
        again = json.loads((folder.prepare(8, request) / "request.json").read_text())
        assert again["sides"][0]["is_warm"], "compiled here by now"
        assert again["sides"][0]["exported"]["code"] == f"sys.path.insert(0, '{folder.path}/files')"
        assert folder.outward(f"in {folder.path}/files/model.py") == "in /home/me/model.py"
        folder.drop_caches([])
        assert not list((folder.path / "cache").iterdir())
        with pytest.raises(ValueError, match="leads out"):
            StationFolder({"../x.py": ""}, "/home/me")
    finally:
        os.chdir(work)
        folder.remove()


def test_what_another_station_of_the_host_has_compiled_is_there_for_a_race(work: Path) -> None:
    caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    stations = [StationFolder({}, "/home/me", run) for run in ("a1", "a1", "b2")]
    first, second, other = stations

    def compiled(station: StationFolder, text: str) -> None:
        job = station.environment(3, dict.fromkeys(caches, "there"))
        (Path(job[caches[0]]) / "code").write_text(text)

    def raced(station: StationFolder, cache: str = "0003") -> dict[str, Any]:
        side = {"cache": f"/home/me/cache/{cache}", "is_warm": True}
        folder = station.prepare(9, {"target": "t", "sides": [side]})
        return json.loads((folder / "request.json").read_text())["sides"][0]

    try:
        compiled(first, "ours")
        compiled(other, "of another run")
        side = raced(second)
        assert side["is_warm"]
        assert Path(side["cache"]).parent.parent == second.path
        assert (Path(side["cache"]) / "code").read_text() == "ours"
        assert not raced(second, "0004")["is_warm"], "nobody here has compiled it"
        job = second.environment(3, dict.fromkeys(caches, "there"))
        assert not list(Path(job[caches[0]]).iterdir()), "a trial compiles anew"
    finally:
        os.chdir(work)
        for station in stations:
            station.remove()


def planted(prefix: str, how: str) -> Path:
    """A folder named as a station's that has compiled trial 3, which others may write."""
    real = Path(tempfile.mkdtemp(prefix="planted-" if how == "a link" else f"{prefix}-"))
    (real / "cache" / "0003").mkdir(parents=True)
    (real / "cache" / "0003" / "code").write_text("theirs")
    if how == "of another user":
        os.chown(real, 12345, -1)
    elif how == "a link":
        link = real.with_name(f"{prefix}-link")
        link.symlink_to(real)
        return link
    else:
        real.chmod(0o777)
    return real


@pytest.mark.parametrize("how", ["writable by all", "of another user", "a link"])
def test_what_another_user_could_have_written_is_not_run_and_not_removed(
    work: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "of another user" and os.geteuid():
        pytest.skip("only root can give a folder away")
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    folder = planted("autocompile-station-4194305-a1", how)  # as a killed one, and as one at work
    beside = planted("autocompile-station-a1", how)
    for each in (folder, beside):
        os.utime(each, (0, 0), follow_symlinks=False)
    station = StationFolder({}, "/home/me", "a1")
    try:
        side = {"cache": "/home/me/cache/0003", "is_warm": True}
        made = station.prepare(9, {"target": "t", "sides": [side]})
        found = json.loads((made / "request.json").read_text())["sides"][0]
        assert not found["is_warm"] and not list(Path(found["cache"]).iterdir())
        assert (folder / "cache" / "0003" / "code").exists()
        assert (beside / "cache" / "0003" / "code").exists()
    finally:
        os.chdir(work)
        station.remove()


def test_the_folder_of_a_killed_station_is_removed_and_no_other(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    monkeypatch.setattr(os, "getpid", lambda: 4194305)  # its pid in another container
    at_work, killed = (StationFolder({}, "/home/me", run) for run in ("a1", "b2"))
    os.close(killed._held)
    young = Path(tempfile.mkdtemp(prefix="autocompile-station-c3-"))  # not held yet
    for folder in (at_work.path, killed.path):
        os.utime(folder, (0, 0))
    StationFolder({}, "/home/me", "d4").remove()
    os.chdir(work)
    assert [f.exists() for f in (at_work.path, killed.path, young)] == [True, False, True]
    at_work.remove()


# The process -------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe("here")
    yield made
    made._process.kill()


def until(pipe: Pipe, kind: Say) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for line in pipe.receive(1.0):
            assert line is not None, "it is dead"
            if (message := decode(line))["say"] is kind:
                return message
    raise AssertionError(f"no {kind} came")


class Keeper:
    """In place of the tokens' actor: grants at once, and keeps what it heard."""

    def __init__(self, pipe: Pipe) -> None:
        self.heard: list[str] = []
        self.hear = self
        self._pipe = pipe

    def remote(self, name: str, kind: str) -> None:
        self.heard.append(kind)
        if kind == Say.ASK.value:
            self._pipe.send(encode(Do.GRANTED))
        elif kind == Say.DONE.value:
            self._pipe.send(encode(Do.FREE))


def opened(pipe: Pipe, jobs: int | None = 2, most_jobs: int = 1) -> dict[str, Any]:
    source = (TARGETS / "plain.py").read_bytes()
    files = {"plain.py": base64.b64encode(source).decode()}
    options = {"isolation": "auto", "memory_limit_bytes": None, "share": 1.0}
    options |= {"run": "a1", "most_jobs": most_jobs, **({"jobs": jobs} if jobs else {})}
    pipe.send(encode(Do.OPEN, files=files, place="/home/me", **options))
    return until(pipe, Say.HELLO)


def start(pipe: Pipe, number: int, target: str = "plain.py") -> None:
    request = TrialRequest(
        header=Header(target, "cpu"),
        number=number,
        phase="forward",
        config=CompileConfig("eager"),
        batch_size=4,
        limits=SHORT,
    )
    job = sent_job(Job(number, Path("x"), 200.0))
    pipe.send(encode(Do.START, job=job, request=request.to_dict(), kept=[], alone=False))


def test_a_station_runs_trials_of_a_target_that_it_was_sent(pipe: Pipe) -> None:
    pipe.attach(keeper := Keeper(pipe))
    assert opened(pipe)["slots"] == 2
    start(pipe, 5, "/home/me/plain.py")
    message = until(pipe, Say.ENDED)
    ending = ending_of(message["ending"])
    assert (ending.outcome, ending.message) == (Outcome.OK, "")
    assert ending.payload["measurement"]["eager_s"]
    assert "log.txt" in message["files"]
    assert keeper.heard[:2] == ["ask", "done"], "it measures with its host's leave"
    assert keeper.heard.count("ask") == keeper.heard.count("done")
    pipe.send(encode(Do.CLOSE))
    until(pipe, Say.CLOSED)


@pytest.mark.parametrize(("most_jobs", "slots"), [(1, 1), (1000, os.cpu_count() or 1)])
def test_without_a_number_of_jobs_a_station_runs_as_many_as_a_machine_at_most_its_share(
    pipe: Pipe, most_jobs: int, slots: int
) -> None:
    assert opened(pipe, None, most_jobs)["slots"] <= min(slots, 16)


def test_hushed_it_starts_nothing_until_the_host_is_free(pipe: Pipe) -> None:
    pipe.attach(keeper := Keeper(pipe))
    opened(pipe)
    pipe.send(encode(Do.HUSH))
    start(pipe, 1)
    while "hushed" not in keeper.heard:
        time.sleep(0.02)
    time.sleep(1.0)
    assert not pipe.receive(0.1)
    pipe.send(encode(Do.FREE))
    until(pipe, Say.ENDED)


class Quiet:
    """In place of an executor: nothing compiles."""

    is_quiet, slots = True, 0

    def hush(self, is_on: bool) -> None:
        """Nothing runs."""

    def cancel(self, number: int) -> None:
        """Nor waits."""


def test_no_files_of_a_job_are_copied_beside_a_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    station: Any = Station(types.SimpleNamespace(), -1)  # type: ignore[arg-type]
    station._executor, begun = Quiet(), list[int]()
    monkeypatch.setattr(
        station, "_start", lambda _, message: begun.append(message["job"]["number"])
    )
    station._take(encode(Do.HUSH))
    for number in (1, 2):
        station._take(encode(Do.START, job={"number": number}))
    station._take(encode(Do.CANCEL, number=1))
    assert not begun
    station._take(encode(Do.FREE))
    assert begun == [2]


@pytest.mark.parametrize("ends", [Do.ANEW, None])
def test_what_a_station_says_of_being_hushed_is_true(ends: Do | None) -> None:
    source, sink = os.pipe()
    inbox: Any = types.SimpleNamespace()
    station: Any = Station(inbox, sink)
    station._executor = Quiet()
    station._has_token = ends is None
    station._take(encode(Do.HUSH))
    if ends is not None:
        station._take(encode(ends))
    station._tell_changes()
    assert not select.select([source], [], [], 0)[0], "it measures, or nobody wants to know"
    if ends is None:
        station.measured()
        station._tell_changes()
        said = [decode(line)["say"] for line in os.read(source, 1000).splitlines()]
        assert said == [Say.DONE, Say.HUSHED]
    os.close(source)
    os.close(sink)


def test_a_station_says_that_it_has_stopped_before_it_waits_for_anything() -> None:
    source, sink = os.pipe()
    lines = [[encode(Do.HUSH)], [None]]
    station: Any = Station(types.SimpleNamespace(take=lambda: lines.pop(0)), sink)  # type: ignore[arg-type]

    class Waiting(Quiet):
        def wait(self, timeout_s: float) -> list[Event]:
            said = [decode(line)["say"] for line in os.read(source, 1000).splitlines()]
            assert said == [Say.HUSHED], "another station waits for this"
            return []

        def close(self) -> None:
            """Nothing runs."""

    station._executor, station._numbers = Waiting(), {1}
    station.run()
    assert not lines
    os.close(source)
    os.close(sink)


def test_a_line_that_makes_no_sense_is_the_end_of_the_station() -> None:
    pipe: Any = Pipe.__new__(Pipe)
    pipe._said = queue.SimpleQueue()
    pipe._process = types.SimpleNamespace(stdout=[b"Segmentation fault"])
    with pytest.raises(ValueError, match="Expecting value"):
        pipe._read()
    assert pipe.receive(0.0) == [None]


def alive_with(variable: str) -> list[int]:
    """Living processes with a variable; a test that runs in another process has its own mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def test_nothing_of_a_station_outlives_the_actor() -> None:
    """The actor dies by SIGKILL; its station's trials, fork server and folder are gone."""
    code = (
        "import sys, time\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}\n"
        "from test_station import *\n"
        "pipe = Pipe('here'); pipe.attach(Keeper(pipe)); opened(pipe)\n"
        "start(pipe, 1); until(pipe, Say.STEPPED)\n"
        "print(pipe._process.pid, flush=True); time.sleep(100)"
    )
    mark = f"AUTOCOMPILE_ACTOR={os.getpid()}"
    actor = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env=dict([*os.environ.items(), mark.split("=")]),
    )
    assert actor.stdout is not None
    station = int(actor.stdout.readline())
    assert len(alive_with(mark)) > 3, "the actor, its station, a fork server and a trial"
    actor.send_signal(signal.SIGKILL)
    actor.wait()
    actor.stdout.close()
    deadline, folders = time.monotonic() + 10, f"autocompile-station-{station}-*"
    while alive_with(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive_with(mark)
    assert not list(Path(tempfile.gettempdir()).glob(folders))
