"""Real Ray clusters of this machine, with nodes of one CPU, fake GPUs and labels."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import _alive_with, assert_nothing_left

import autocompile
from autocompile.cluster import dispatch
from autocompile.cluster.tune_all import OnCluster, tune_all
from autocompile.execute.exclusive import held
from autocompile.request import Request
from autocompile.store.record import Record, RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = """
import torch
from beside import WIDTH

def get_model():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

def get_inputs(batch_size):
    return (torch.randn(batch_size, WIDTH),)
"""
SPACE = autocompile.SearchSpace(
    backends=("inductor",), modes=("default",), batch_sizes=(4,)
)
SHORT = {"device": "cpu", "phases": ("forward",), "space": SPACE}
STATION = "autocompile.cluster.station"
PROGRAM = [sys.executable, "-m", "autocompile"]


def tuned(ray: str = "auto", **options: Any) -> OnCluster:
    return tune_all(Request("model.py", ray=ray, **options), "plain")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # what the machine had before Ray
    head = {"num_cpus": 0, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


def labelled(kind: str, name: str = "") -> dict[str, Any]:
    """A node with a temporary folder of its own, as if it were a machine of its own."""
    folder = Path(name or kind).absolute()
    folder.mkdir()
    own = {
        "env_vars": {"TMPDIR": str(folder)},
        "labels": {"ray.io/accelerator-type": kind},
    }
    return {"num_cpus": 1, "num_gpus": 1, **own}


@pytest.fixture(autouse=True)
def _model(work: Path) -> None:
    """A target in a folder that no node knows, with a file beside it."""
    (work / "model.py").write_text(MODEL)
    (work / "beside.py").write_text("WIDTH = 16\n")


def measuring(folder: Path) -> list[tuple[float, float]]:
    """When something was timed."""
    records: list[Record] = RunFolder(folder).read()[0]
    spans = {span for r in records for span in r.spans if span[0] == "measure"}
    return sorted((begin, end) for _, begin, end in spans)


def finished(folder: Path) -> int:
    return len(list(folder.glob("trials/*/result.json")))


def running(folder: Path) -> int:
    begun = folder.glob("trials/*/request.json")
    return len([path for path in begun if not path.with_name("result.json").exists()])


def until(condition: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it has not become so"
        time.sleep(0.05)


def test_each_type_gets_a_whole_run_and_no_trial_of_a_station_is_timed_beside_another(
    cluster: Any,
) -> None:
    cluster.add_node(**{**labelled("T4"), "num_gpus": 2})
    cluster.add_node(
        **labelled("H100") | {"labels": {}, "resources": {"accelerator_type:H100": 1}}
    )
    kinds = ("H100", "T4")
    found = tuned(
        ray=cluster.address, accelerators=kinds, trials=4, budget_s=120.0, **SHORT
    )
    assert not found.errors
    nodes = {}
    for kind in kinds:
        result = autocompile.load(found.folder / kind)
        assert result.verdict.keys() == {"forward"}
        assert result.environment["threads"] == 2, "not the one thread that Ray sets"
        nodes[kind] = {r.detail["station"] for r in result.trials if r.wall_s}
        spans = measuring(found.folder / kind)
        assert len(spans) > 4
        assert all(a[1] - b[0] < 0.05 for a, b in itertools.pairwise(spans))
    assert all(len(stations) == 1 for stations in nodes.values())
    assert nodes["H100"] != nodes["T4"]
    assert_nothing_left(STATION, within_s=10)


def test_a_node_that_is_lost_in_a_trial_loses_nothing(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [cluster.add_node(**labelled("T4", name)) for name in "ab"]
    took_s, folder = [], Path("runs/model-0001/T4")

    def remove() -> None:
        until(lambda: finished(folder) >= 2 and running(folder) >= 2, 200)
        assert len(_alive_with(STATION)) == 2
        cluster.remove_node(nodes[0], allow_graceful=False)
        began = time.monotonic()
        until(lambda: len(_alive_with(STATION)) == 1, 60)
        took_s.append(time.monotonic() - began)

    thread = threading.Thread(target=remove)
    thread.start()
    options = {"accelerators": ("T4",), "trials": 8, "effort": "full"}
    found = tuned(ray=cluster.address, **options, **SHORT)
    thread.join()
    assert not found.errors
    assert took_s[0] < 10, "something of it lived on"
    searched = [
        r for r in found.results["T4"].trials if r.role == "search" and r.wall_s
    ]
    assert len(searched) == 8
    assert {r.outcome.value for r in searched} == {"ok"}
    told = capsys.readouterr().err
    assert "lost (" in told and "is put back" in told, "it was in the middle of a trial"
    assert_nothing_left(STATION, within_s=10)


def test_a_killed_driver_leaves_nothing_and_is_resumed(cluster: Any) -> None:
    cluster.add_node(**labelled("T4"))
    command = [*PROGRAM, "tune", "model.py", "--ray", cluster.address]
    command += "--accelerators t4 --device cpu".split()
    command += (
        "--phase forward --backend inductor --mode default --batch-size 4".split()
    )
    command += "--trials 4 --budget 120s --progress plain".split()
    driver = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    folder = Path("runs/model-0001/T4")
    until(lambda: finished(folder) >= 2, 200)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    for text in (STATION, "autocompile.trial"):
        assert_nothing_left(text, within_s=10)
    before = {p: p.read_text() for p in folder.glob("trials/*/result.json")}
    done = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.lstrip().startswith("speed-up"), (
        "no heading above a single report"
    )
    assert {p: p.read_text() for p in before} == before
    searched = [
        r for r in RunFolder(folder).read()[0] if r.role == "search" and r.wall_s
    ]
    assert len(searched) >= 4
    assert_nothing_left(STATION, within_s=10)
    assert os.listdir("runs") == ["model-0001"]


def test_a_station_waits_for_a_tune_on_its_machine_and_is_named_with_it(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_node(**labelled("T4"))
    monkeypatch.setattr(dispatch, "_OPEN_S", 30.0)
    monkeypatch.setattr(tempfile, "tempdir", "T4")  # of the node
    with held("run here", print):
        found = tuned(ray=cluster.address, accelerators=("T4",), **SHORT)
    (error,) = found.errors.values()
    assert "no station has started" in str(error.text())
    assert "waiting for the autocompile that is at work on this machine" in error.text()
    assert "run here" in error.text()
    assert_nothing_left(STATION, within_s=10)


def test_a_session_that_was_connected_before_is_used_and_stays(cluster: Any) -> None:
    import ray

    cluster.add_node(**labelled("T4"))
    package = str(Path(autocompile.__file__).parent)
    own = {"py_modules": [package]}  # where it is not installed on the nodes
    ray.init(
        address=cluster.address,
        runtime_env=own,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        found = tuned(accelerators=("T4",), trials=3, budget_s=90.0, **SHORT)
        assert ray.is_initialized(), "it is not ours"
    finally:
        ray.shutdown()
    assert not found.errors
    assert_nothing_left(STATION, within_s=10)


def test_a_wrong_type_is_one_paragraph(cluster: Any) -> None:
    cluster.add_node(**labelled("T4"))
    command = [
        *PROGRAM,
        "tune",
        "model.py",
        "--ray",
        cluster.address,
        "--accelerators",
        "A100",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no node of the cluster has A100\n")
    assert not Path("runs").exists()
