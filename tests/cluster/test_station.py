"""A station's process with real trials, its messages, its folder, and what Ray's workers change."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
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

from autocompile.cluster import dispatch
from autocompile.cluster.links import Pipe, places_of, restored, side_by_side
from autocompile.cluster.station import Station, StationFolder
from autocompile.cluster.tune_all import shipment_of
from autocompile.cluster.wire import Do, Say, decode, encode, sent_job
from autocompile.errors import RunError, UsageError
from autocompile.execute import exclusive as lock
from autocompile.execute.executor import Ended, Ending, Job
from autocompile.protocol.requests import Header, Side, TimingLimits, TrialRequest
from autocompile.runtime import machine
from autocompile.settings.config import CompileConfig
from autocompile.store.reading import of_fields, plain
from autocompile.store.record import Outcome, Step

SHORT = TimingLimits(half_width=0.5, max_s=0.1, front_s=0.1, block_s=0.002)


# Messages ----------------------------------------------------------------------------------------


def test_jobs_and_endings_come_back_as_they_were_sent() -> None:
    job = Job(
        3, Path("run/trials/0003"), 60.0, 30.0, environment={"A": "b"}, fresh=True
    )
    sent = json.loads(json.dumps(sent_job(job)))
    assert "folder" not in sent
    assert Job(**{**sent, "folder": job.folder, "toolchain": None}) == job
    ending = Ending(
        Outcome.TIMEOUT, Step.COMPILE, "slow", {"graphs": 1}, 2.0, {"compile": 1.0},
        (("import", 1.0, 2.0),), ((3.0, 4.0),), "stack", ("forked",),
    )  # fmt: skip
    assert of_fields(Ending, json.loads(json.dumps(plain(ending)))) == ending


@pytest.mark.parametrize("line", ["3", "{}", '{"say": "shout"}', '{"do": "stepped"}'])
def test_what_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no message|is not a valid"):
        decode(line)


# What Ray changes --------------------------------------------------------------------------------


def test_the_environment_is_that_of_before_ray_with_its_gpus() -> None:
    now = {
        "OMP_NUM_THREADS": "1",
        "RAY_JOB_ID": "1",
        "CUDA_VISIBLE_DEVICES": "3",
        "HOME": "/h",
    }
    assert restored(now, {"HOME": "/h"}) == {"CUDA_VISIBLE_DEVICES": "3", "HOME": "/h"}
    before = {
        "OMP_NUM_THREADS": "8",
        "RAY_ADDRESS": "auto",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    }
    assert restored(now, before) == {
        "OMP_NUM_THREADS": "8",
        "RAY_ADDRESS": "auto",
        "CUDA_VISIBLE_DEVICES": "3",
        "HOME": "/h",
    }


# Places ------------------------------------------------------------------------------------------


def node(
    name: str, labels: dict[str, str] | None = None, **resources: float
) -> dict[str, Any]:
    own = {key.replace("__", ":"): value for key, value in resources.items()}
    return {
        "NodeID": name,
        "Alive": True,
        "NodeManagerHostname": name,
        "Resources": own,
        "Labels": labels or {},
    }


T4 = {"ray.io/accelerator-type": "T4"}


def test_a_station_for_each_node_with_all_its_gpus_or_without_gpus() -> None:
    nodes = [
        node("head"),
        node("a", T4, GPU=2, CPU=9),
        node("b", GPU=1, CPU=4, accelerator_type__H100=1),
        node("c", CPU=8),
    ]
    found = places_of(nodes, None)
    assert {k: [(p.node, p.gpus, p.cpus) for p in its] for k, its in found.items()} == {
        "T4": [("a", 2, 9.0)],
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
        places_of(
            [node("a", T4, GPU=1, CPU=4), {**node("b", CPU=4), "Alive": False}],
            ["A100"],
        )
    assert "no node of the cluster has A100" in error.value.text()
    assert "there are: T4 (1), cpu (1)" in error.value.text()
    assert "try: --accelerators T4,cpu" in error.value.text()


def test_a_cluster_without_gpus_and_cpus_is_refused() -> None:
    with pytest.raises(
        UsageError, match="no node of the cluster has GPUs or a whole CPU"
    ) as error:
        places_of([node("head"), node("b", CPU=0.5)], None)
    assert "2 of its nodes are alive; there are: none" in error.value.text()


def test_what_makes_stations_alike_is_what_a_probe_describes() -> None:
    described = machine.describe(torch.device("cpu"))
    of_gpus = {"driver", "power_limit_w"}
    assert set(dispatch._ALIKE) - of_gpus <= described.keys()


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
    files, place, target = shipment_of("model.py:net")
    assert sorted(files) == [
        *("helper.py", "lib/__init__.py", "lib/common.py", "lib/parts/__init__.py"),
        *("lib/parts/layers.py", "lib/parts/sizes.py", "model.py"),
    ]
    assert (place, target) == (str(work), "model.py:net")
    assert sorted(shipment_of("lib.parts.layers:f")[0])[-1] == "lib/parts/sizes.py"
    assert shipment_of("torch.nn:Linear") == ({}, str(work), "torch.nn:Linear")


def test_a_target_elsewhere_is_named_by_its_whole_path(work: Path) -> None:
    (work / "there").mkdir()
    (work / "there" / "model.py").write_text("")
    (work / "here").mkdir()
    os.chdir(work / "here")
    there = work / "there"
    assert shipment_of("../there/model.py") == (
        {"model.py": ""},
        str(there),
        str(there / "model.py"),
    )


def test_a_request_gets_the_paths_of_the_station_and_users_read_their_own(
    work: Path,
) -> None:
    files = {"model.py": base64.b64encode(b"x = 1").decode()}
    folder = StationFolder(files, "/home/me")
    try:
        side = {
            "cache": "/home/me/runs/x/cache/0003",
            "is_warm": True,
            "exported": None,
        }
        request = {
            "target": "/home/me/model.py:f",
            "sides": [side],
            "toolchain": "/home/me/t",
        }
        made = folder.prepare(7, request)
        found = json.loads((made / "request.json").read_text())
        assert found["target"] == f"{folder.path}/files/model.py:f"
        assert found["sides"][0] == {
            **side,
            "cache": f"{folder.path}/cache/0003",
            "is_warm": False,
        }
        assert Path(found["sides"][0]["cache"]).is_dir()
        side["exported"] = {"code": "sys.path.insert(0, '/home/me')"}
        again = json.loads((folder.prepare(8, request) / "request.json").read_text())
        assert again["sides"][0]["is_warm"], "compiled here by now"
        assert (
            again["sides"][0]["exported"]["code"]
            == f"sys.path.insert(0, '{folder.path}/files')"
        )
        assert (
            folder.outward(f"in {folder.path}/files/model.py") == "in /home/me/model.py"
        )
        folder.drop_caches([])
        assert not list((folder.path / "cache").iterdir())
        with pytest.raises(ValueError, match="leads out"):
            StationFolder({"../x.py": ""}, "/home/me")
    finally:
        os.chdir(work)
        folder.remove()


# The process -------------------------------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
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


def folders() -> set[Path]:
    return {*Path(tempfile.gettempdir()).glob("autocompile-station-*")}


def opened(pipe: Pipe, answer: Say = Say.HELLO) -> dict[str, Any]:
    source = (TARGETS / "plain.py").read_bytes()
    files = {"plain.py": base64.b64encode(source).decode()}
    options = {"isolation": "auto", "memory_limit_bytes": None, "jobs": 2}
    pipe.send(encode(Do.OPEN, files=files, place="/home/me", **options))
    return until(pipe, answer)


def start(pipe: Pipe, number: int, target: str = "plain.py") -> None:
    request = TrialRequest(
        header=Header(target, "cpu"),
        number=number,
        phase="forward",
        sides=(Side(CompileConfig("eager")),),
        batch_size=4,
        limits=SHORT,
    )
    job = sent_job(Job(number, Path("x"), 200.0))
    pipe.send(
        encode(Do.START, job=job, request=request.to_dict(), kept=[], alone=False)
    )


def test_a_station_runs_trials_of_a_target_that_it_was_sent(pipe: Pipe) -> None:
    before = folders()
    assert opened(pipe)["slots"] == 2
    start(pipe, 5, "/home/me/plain.py")
    message = until(pipe, Say.ENDED)
    ending = of_fields(Ending, message["ending"])
    assert (ending.outcome, ending.message) == (Outcome.OK, "")
    assert ending.payload["sides"][0]["measurement"]["eager_s"]
    assert "log.txt" in message["files"]
    with (
        pytest.raises(RunError, match="trials of a Ray cluster"),
        lock.held("a tune", print),
    ):
        raise AssertionError("two at once on a machine")
    pipe.send(encode(Do.CLOSE))
    until(pipe, Say.CLOSED)
    with lock.held("a tune", print):
        assert folders() == before, "it is gone by the time it says so"


def test_a_station_waits_for_who_is_at_work_on_its_machine(pipe: Pipe) -> None:
    with lock.held("another tune", print):
        told = opened(pipe, Say.TOLD)["text"]
        assert told.startswith(
            "waiting for the autocompile that is at work on this machine"
        )
        assert "another tune" in told
    until(pipe, Say.HELLO)


class Listing:
    """In place of an executor: keeps the jobs that it is given."""

    slots = 4

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, job: Job) -> None:
        self.jobs.append(job)


@pytest.mark.parametrize("gpus", ["4,5", "GPU-a,GPU-b"])
def test_jobs_are_spread_over_the_gpus_and_those_that_take_turns_share_one(
    work: Path, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    source, sink = os.pipe()
    station: Any = Station(types.SimpleNamespace(), sink)  # type: ignore[arg-type]
    station._executor, station._folder = Listing(), StationFolder({}, "/home/me")
    station._memory = None
    number = itertools.count()

    def start(**request: Any) -> str:
        sent = {
            "number": next(number),
            "timeout_s": 1.0,
            "environment": {},
            "toolchain": False,
        }
        station._start({"job": sent, "request": request, "kept": [], "alone": False})
        return str(station._executor.jobs[-1].environment["CUDA_VISIBLE_DEVICES"])

    def end(number: int) -> None:
        station._tell(Ended(number, Ending(Outcome.OK, Step.EXIT)))

    first, second = gpus.split(",")
    turns = {"phase": "forward", "batch_size": 4, "takes_turns": True}
    try:
        assert [start(), start(), start()] == [first, second, first]
        end(0), end(2)
        assert [start(), start()] == [first, second], (
            "where least runs, then where least has run"
        )
        assert len({start(**turns) for _ in range(3)}) == 1
        assert len({start(**turns), start(**{**turns, "batch_size": 8})}) == 2
    finally:
        os.chdir(work)
        station._folder.remove()
        os.close(source)
        os.close(sink)


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
        "pipe = Pipe(); opened(pipe)\n"
        "start(pipe, 1); until(pipe, Say.STEPPED)\n"
        "print(pipe._process.pid, flush=True); time.sleep(100)"
    )
    before = folders()
    mark = f"AUTOCOMPILE_ACTOR={os.getpid()}"
    actor = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env=dict([*os.environ.items(), mark.split("=")]),
    )
    assert actor.stdout is not None
    assert int(actor.stdout.readline())
    assert len(alive_with(mark)) > 3, (
        "the actor, its station, a fork server and a trial"
    )
    actor.send_signal(signal.SIGKILL)
    actor.wait()
    actor.stdout.close()
    deadline = time.monotonic() + 10
    while alive_with(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive_with(mark)
    assert folders() == before
