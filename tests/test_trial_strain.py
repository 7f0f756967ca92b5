"""Strain: who takes this process' cores away is seen, and the rounds in which it happens."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autocompile.trial import strain as strain_module
from autocompile.trial.strain import Strain

CPU = torch.device("cpu")
needs_schedstat = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="this kernel does not count waiting"
)


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@pytest.fixture
def _one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This thread, and what it starts, shares one core; no quota holds it back."""
    monkeypatch.setattr(Strain, "_held_back_s", lambda self: 0.0)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("waited_s", "disturbed"),
    [
        ({"1": 0.0}, False),
        ({"1": 0.01}, False),
        ({"1": 0.03}, True),
        ({str(thread): 0.01 for thread in range(64)}, False),
        ({**{str(thread): 0.0 for thread in range(64)}, "64": 0.03}, True),
    ],
)
def test_a_moment_is_disturbed_where_a_thread_waited_for_more_than_two_percent_of_it(
    monkeypatch: pytest.MonkeyPatch, waited_s: dict[str, float], disturbed: bool
) -> None:
    now: dict[str, Any] = {"clock": 0.0, "waited": {"1": 7.0}}

    class Clock:
        perf_counter = staticmethod(lambda: now["clock"])

    monkeypatch.setattr(strain_module, "time", Clock)
    monkeypatch.setattr(strain_module, "_waited_s", lambda: now["waited"])
    monkeypatch.setattr(Strain, "_held_back_s", lambda self: 0.0)
    strain = Strain(CPU)
    mark = strain.mark()
    now["clock"], now["waited"] = 1.0, {**waited_s, "1": 7.0 + waited_s.get("1", 0.0)}
    assert bool(strain.disturbed_since(mark)) is disturbed
    assert strain.summary()["waited"] == pytest.approx(max(waited_s.values()))
    mark = strain.mark()
    now["clock"] = 2.0
    assert not strain.disturbed_since(mark), "what was before the mark does not count"


def test_what_the_hypervisor_takes_from_our_cores_disturbs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = {"clock": 0.0, "stolen": 300.0}

    class Clock:
        perf_counter = staticmethod(lambda: now["clock"])

    monkeypatch.setattr(strain_module, "time", Clock)
    monkeypatch.setattr(strain_module, "_stolen_s", lambda: now["stolen"])
    monkeypatch.setattr(strain_module, "_waited_s", dict)
    monkeypatch.setattr(Strain, "_held_back_s", lambda self: 0.0)
    strain = Strain(CPU)
    seen = []
    for stolen_s in (0.01, 0.0, 0.0):
        mark = strain.mark()
        now["clock"] += 0.1
        now["stolen"] += stolen_s
        seen.append(strain.disturbed_since(mark))
    assert seen == [{"stolen"}, frozenset(), frozenset()]
    assert strain.summary()["stolen"] == pytest.approx(0.01 / 0.3, abs=1e-4)


def test_where_nothing_was_ever_stolen_nobody_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(strain_module, "_stolen_s", lambda: float(asked.append(1) or 0))
    strain = Strain(CPU)
    for _ in range(3):
        assert "stolen" not in strain.disturbed_since(strain.mark())
    assert len(asked) == 1


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="this system does not count it")
def test_what_was_stolen_is_the_mean_of_our_cores() -> None:
    def read(cores: set[int]) -> float:
        with open("/proc/stat") as file:
            rows = [line.split() for line in file]
        ticks = [int(row[8]) for row in rows if row[0] in {f"cpu{core}" for core in cores}]
        return sum(ticks) / len(ticks) / os.sysconf("SC_CLK_TCK")

    before = os.sched_getaffinity(0)
    for cores in ({min(before)}, before):
        os.sched_setaffinity(0, cores)
        try:
            low = read(cores)
            assert low <= strain_module._stolen_s() <= read(cores)
        finally:
            os.sched_setaffinity(0, before)


@needs_schedstat
@pytest.mark.usefixtures("_one_core")
def test_a_neighbour_on_the_same_core_is_seen() -> None:
    code = "print(1, flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as neighbour:
        try:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()
            strain = Strain(CPU)
            mark = strain.mark()
            spin(0.3)
            assert strain.disturbed_since(mark)
            seen = strain.summary()
            assert seen["waited"] > 0.01
            assert seen["throttled"] is False
        finally:
            neighbour.kill()


@needs_schedstat
def test_what_each_thread_waited_is_what_the_kernel_says_of_it() -> None:
    def read() -> dict[str, int]:
        tasks = os.listdir("/proc/self/task")
        paths = {task: f"/proc/self/task/{task}/schedstat" for task in tasks}
        return {task: int(open(path).read().split()[1]) for task, path in paths.items()}

    before = read()
    waited_s = strain_module._waited_s()
    after = read()
    assert str(os.getpid()) in waited_s
    for task in before.keys() & waited_s.keys() & after.keys():
        assert before[task] <= round(waited_s[task] * 1e9) <= after[task]


@needs_schedstat
@pytest.mark.usefixtures("_one_core")
def test_a_thread_that_waits_counts_as_well() -> None:
    """Two threads on one core: each waits while the other runs."""
    begun, done = threading.Event(), threading.Event()

    def work() -> None:  # without the interpreter's lock
        while not done.is_set():
            begun.set()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        begun.wait()
        strain = Strain(CPU)
        mark = strain.mark()
        spin(0.3)
        assert strain.disturbed_since(mark)
    finally:
        done.set()
        thread.join()
