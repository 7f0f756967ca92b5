"""The executor and its parts: who may run, clocks, limits, cgroups, forks; with real processes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import TARGETS, Bench, assert_nothing_left
from conftest import Clock as MachineClock

from autocompile.errors import UsageError
from autocompile.execute import local as process
from autocompile.execute import memory
from autocompile.execute import outcome as ending
from autocompile.execute.child import Child, Clock
from autocompile.execute.exclusive import Exclusive
from autocompile.execute.executor import Ended, Ending, Event, Job, Stepped
from autocompile.execute.fork_server import ForkServer
from autocompile.execute.job import adaptive_timeout_s
from autocompile.execute.local import LocalExecutor, default_jobs
from autocompile.execute.outcome import conclude
from autocompile.search.records import to_record
from autocompile.settings.config import CompileConfig
from autocompile.settings.setting import Setting
from autocompile.store.record import Outcome, Step

# Exclusive use -----------------------------------------------------------------------------------


class Room:
    """Trials that are held, let go and told to go, and what must be true of them throughout."""

    def __init__(self) -> None:
        self.present: set[int] = set()
        self.held: set[int] = set()
        self.timing: int | None = None
        self.granted: list[int] = []
        self.exclusive = Exclusive(self.hold, self.release, self.grant)

    def hold(self, numbers: list[int]) -> None:
        assert not self.held & set(numbers)
        self.held |= set(numbers)

    def release(self, numbers: list[int]) -> None:
        assert set(numbers) <= self.held
        self.held -= set(numbers)

    def grant(self, number: int) -> None:
        assert self.timing is None
        assert self.held == self.present - {number}, "somebody moves while another is timed"
        self.timing = number
        self.granted.append(number)


def test_while_one_is_timed_all_others_stand_still() -> None:
    room = Room()
    for number in (1, 2, 3):
        room.present.add(number)
        room.exclusive.enter(number)
    room.exclusive.request(2)
    assert room.timing == 2
    assert room.exclusive.taken
    room.exclusive.request(3)
    room.timing = None
    room.exclusive.give_back(2)
    assert room.granted == [2, 3], "first come, first served"
    room.timing = None
    room.exclusive.give_back(3)
    assert not room.held
    assert not room.exclusive.taken


def test_whoever_asks_twice_is_told_twice() -> None:
    granted: list[int] = []
    exclusive = Exclusive(lambda number: None, lambda number: None, granted.append)
    exclusive.enter(1)
    for _ in range(2):  # two processes of one trial: the second would wait for ever
        exclusive.request(1)
    assert granted == [1, 1]


def test_whatever_happens_nobody_is_forgotten_and_nobody_runs_beside_a_timing() -> None:
    for seed in range(300):
        rng, room, next_number = random.Random(seed), Room(), 0
        asked: set[int] = set()
        for _ in range(60):
            moving = room.present - room.held
            action = rng.choice(["enter", "ask", "give_back", "leave"])
            if action == "enter" and not room.exclusive.taken:
                room.present.add(next_number)
                room.exclusive.enter(next_number)
                next_number += 1
            elif action == "ask" and (able := sorted(moving - asked)):
                asked.add(number := rng.choice(able))
                room.exclusive.request(number)
            elif action == "give_back" and room.timing is not None:
                number, room.timing = room.timing, None
                asked.discard(number)
                room.exclusive.give_back(number)
            elif action == "leave" and room.present:
                number = rng.choice(sorted(room.present))
                room.present.discard(number)
                room.held.discard(number)
                asked.discard(number)
                room.timing = None if room.timing == number else room.timing
                room.exclusive.leave(number)
        while room.timing is not None:
            number, room.timing = room.timing, None
            asked.discard(number)
            room.exclusive.give_back(number)
        assert not room.held, seed
        assert not asked, seed


# Clocks and limits -------------------------------------------------------------------------------


def test_a_clock_leaves_out_the_time_in_which_the_trial_was_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = MachineClock()
    monkeypatch.setattr("autocompile.execute.child.time", machine)
    clock = Clock()
    clock.enter(Step.COMPILE)
    machine.work(0.05)
    assert clock.left(0.01, None) == pytest.approx(-0.04)
    clock.hold()
    assert clock.left(0.01, None) == float("inf"), "who stands still has all the time"
    machine.work(0.2)
    clock.go()
    assert clock.left(0.06, 0.07) == pytest.approx(0.01)
    clock.enter(Step.VERIFY)
    assert clock.step_s["compile"] == clock.total_s == pytest.approx(0.05)
    assert clock.pauses == [(pytest.approx(0.05), pytest.approx(0.25))]
    at = [(step, round(begin, 9), round(end, 9)) for step, begin, end in clock.spans]
    assert at == [("import", 0.0, 0.0), ("compile", 0.0, 0.05), ("compile", 0.25, 0.25)]


@pytest.mark.parametrize(
    ("seen", "allowed"),
    [
        ([], 300),  # nothing is known
        ([1.0, 1.0], 300),  # hardly anything
        ([1.0, 2.0, 3.0], 60),  # never less than a minute
        ([40.0] * 9 + [50.0], 120),  # three times the 90th percentile
        ([250.0] * 5, 300),  # never more than the user allows
    ],
)
def test_a_compile_may_take_three_times_what_others_of_its_kind_took(
    seen: list[float], allowed: float
) -> None:
    assert adaptive_timeout_s(300, seen) == pytest.approx(allowed)


def test_the_cap_of_the_user_is_the_cap() -> None:
    assert adaptive_timeout_s(20, [1.0] * 10) == 20


def ended(step: Step = Step.COMPILE, **seen: Any) -> Child:
    job = Job(0, Path(), timeout_s=60.0, total_timeout_s=9.0)
    child = Child(job, Mock(), Mock(), **seen)
    child.clock.enter(step)
    return child


STACK = b'Current thread (most recent call first):\n  File "/x/m.py", line 7 in f\n'


@pytest.mark.parametrize(
    ("seen", "is_oom", "outcome", "words"),
    [
        ({"code": -11}, False, Outcome.CRASHED, "SIGSEGV in compile"),
        ({"code": 3, "last_output": b"good\nbye\n"}, False, Outcome.CRASHED, "code 3 in compile"),
        ({"code": 3, "last_output": b"good\nbye\n"}, False, Outcome.CRASHED, "a result: bye"),
        ({}, False, Outcome.INFRASTRUCTURE, "killed from outside"),
        ({"code": -9}, True, Outcome.OUT_OF_MEMORY, "kernel"),
        (
            {"code": -9, "killed_for": "total", "dump": STACK},
            False,
            Outcome.TIMEOUT,
            "took more than 9 s, in f (m.py:7)",
        ),
        ({"code": -9, "killed_for": "interrupted"}, True, Outcome.INTERRUPTED, "stopped before"),
        (  # a compile worker was killed, and the trial could only say that its compile failed
            {
                "result": {"outcome": "compile_error", "step": "compile", "message": "g++ died"},
                "code": 0,
            },
            True,
            Outcome.OUT_OF_MEMORY,
            "g++ died",
        ),
        (  # a result that has arrived is final
            {"result": {"outcome": "ok", "step": "exit"}, "code": -9},
            True,
            Outcome.OK,
            "",
        ),
        ({"result": {"outcome": "fine"}, "code": 0}, False, Outcome.CRASHED, "malformed"),
    ],
)
def test_what_was_seen_has_a_name(
    seen: dict[str, Any], is_oom: bool, outcome: Outcome, words: str
) -> None:
    found, _, message = conclude(ended(**seen), is_oom)
    assert found is outcome
    assert words in message


@pytest.mark.parametrize(
    ("garbage", "outcome"), [("no JSON", Outcome.CRASHED), (None, Outcome.OUT_OF_MEMORY)]
)
def test_a_kill_of_ours_is_not_laid_at_the_kernels_door(
    monkeypatch: pytest.MonkeyPatch, garbage: str | None, outcome: Outcome
) -> None:
    monkeypatch.setattr(ending, "oom_kills", lambda: 1)  # a neighbour was killed for memory
    assert ending.ending_of(ended(code=-9, garbage=garbage)).outcome is outcome


# Memory ------------------------------------------------------------------------------------------


def can_cgroup() -> bool:
    cgroup = memory.Cgroup.build(2**30)
    if cgroup is not None:
        cgroup.remove()
    return cgroup is not None


needs_cgroup = pytest.mark.skipif(not can_cgroup(), reason="may not make a memory cgroup here")


@needs_cgroup
def test_the_kernel_holds_a_cgroup_to_its_limit() -> None:
    cgroup = memory.Cgroup.build(100 * 2**20)
    assert cgroup is not None
    outside = memory.oom_kills()
    code = "import sys; open(sys.argv[1], 'w').write('0'); x = bytearray(int(sys.argv[2]))"
    command = [sys.executable, "-c", code, str(cgroup.entrance)]
    assert subprocess.run([*command, str(20 * 2**20)]).returncode == 0
    assert cgroup.kills() == 0
    assert subprocess.run([*command, str(300 * 2**20)]).returncode == -9
    assert cgroup.kills() == 1
    assert memory.oom_kills() == outside  # what happens in a neighbour's cgroup is not about us
    cgroup.remove()
    assert not cgroup.entrance.parent.exists()


def test_available_memory_is_no_more_than_the_machine_has() -> None:
    available = memory.available_memory_bytes()
    assert available is not None
    assert 0 < available <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


SECOND = """
import time
print("here", flush=True)
while True:
    time.sleep(0.001)
"""
TOP = """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]], start_new_session=True)
"""
ROOT_OF_TREES = """
import os, subprocess, sys, time
from pathlib import Path
from autocompile.protocol import processes

def states(pids):
    stats = [Path(f"/proc/{p}/stat").read_text() for p in pids]
    return {s.rpartition(")")[2].split()[0] for s in stats}

def until(pids, condition):
    deadline = time.monotonic() + 60  # one that is in the kernel stops when it comes out
    while not condition(states(pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition(states(pids)), states(pids)

grouped, *theirs = sys.argv[1:]
command = [sys.executable, "-c", theirs[0], sys.executable, "-c", *theirs[1:]]
roots = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
try:
    # Before that they may not be their own programs yet.
    assert [root.stdout.readline() for root in roots] == [b"here\\n", b"here\\n"]
    trees = {root.pid: processes.descendants(root.pid) for root in roots}
    assert [len(t) for t in trees.values()] == [2, 2], "the second has left the session"
    groups = [tree[0] for tree in trees.values()] if grouped == "grouped" else []
    stopped = processes.pause([*trees], groups)
    assert {root: sorted(pids) for root, pids in stopped.items()} == {
        root: sorted(pids) for root, pids in trees.items()
    }
    first, second = trees
    for tree in trees.values():
        until(tree, lambda seen: seen == {"T"})
    assert "T" not in states(trees), "the roots themselves go on"
    processes.resume(stopped[first])
    until(trees[first], lambda seen: "T" not in seen)
    assert states(trees[second]) == {"T"}
    processes.resume(stopped[second])
    until(trees[second], lambda seen: "T" not in seen)
finally:
    ended = processes.end_descendants(60)
assert ended
assert not processes.descendants(os.getpid())
"""
ROOT = """
import subprocess, sys
subprocess.run(sys.argv[1:], start_new_session=True)
"""


@pytest.mark.parametrize("grouped", ["grouped", "one by one"])
def test_trees_are_paused_and_go_on(grouped: str) -> None:
    # In a process that has no other children: this one may have those of earlier tests.
    command = [sys.executable, "-c", ROOT_OF_TREES, grouped, ROOT, TOP, SECOND]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


BEFORE_ITS_GROUP = """
import os, sys, time
from autocompile.protocol import processes

told, tell = os.pipe()
led, lead = os.pipe()
worker = os.fork()
if worker == 0:
    os.read(told, 1)
    os.setsid()
    os.write(lead, b"!")
    while True:
        time.sleep(0.001)
real = os.killpg

def too_early(group, number):
    try:
        real(group, number)
    finally:  # the worker comes to lead its group just after the signal has found none
        os.write(tell, b"!")
        os.read(led, 1)

os.killpg = too_early
try:
    processes.pause([os.getpid()], [worker], patience_s=60)
    assert processes._look_at(worker).state == "T"
finally:
    os.kill(worker, 9)
"""


def test_one_that_does_not_lead_its_group_yet_is_stopped_too() -> None:
    command = [sys.executable, "-c", BEFORE_ITS_GROUP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


# The executor ------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes benches of a test's own, and looks that nothing of them is left."""
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(tmp_path / f"run-{len(made)}", **options))
        return made[-1]

    yield make
    for bench in made:
        bench.executor.close()
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


def steps(events: list[Event]) -> list[Stepped]:
    return [e for e in events if isinstance(e, Stepped)]


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_both_ways_to_start_a_trial_give_the_same(
    isolation: str, bench: Bench, own: Callable[..., Bench]
) -> None:
    starts = own(isolation="spawn", jobs=1) if isolation == "spawn" else bench
    before = time.time()
    with starts.recorded() as events:
        ending = starts.run(TARGETS / "plain.py", "aot_eager")
    assert ending.outcome is Outcome.OK, ending.message
    (_, begin, _), (_, _, end) = ending.spans[0], ending.spans[-1]
    assert before - 0.1 < begin < end < time.time() + 0.1
    assert sum(b - a for _, a, b in ending.spans) == pytest.approx(ending.wall_s, abs=1e-3)
    assert [e.step.value for e in steps(events)] == [
        "import", "build", "eager", "compile", "verify", "measure", "verify",
    ]  # fmt: skip
    assert not ending.doubts
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


def test_trials_compile_side_by_side_and_are_timed_alone(bench: Bench, tmp_path: Path) -> None:
    target = shutil.copy(TARGETS / "sleeper.py", tmp_path)
    (tmp_path / "sleep").write_text("compile 0")
    with bench.recorded() as events:
        sleeper = bench.start(target, "one")
        bench.until((tmp_path / "asleep").exists)
        others = [bench.start(TARGETS / "plain.py", "aot_eager") for _ in range(2)]
        found = [bench.end(number) for number in others]
        (tmp_path / "sleep").unlink()
        found.append(bench.end(sleeper))
    assert {e.outcome for e in found} == {Outcome.OK}, found
    # From the first verifying to the second each trial is the only one that takes a step of any
    # kind; what is not timed comes after that, and others may be timed before it ends.
    alone = None
    for event in steps(events):
        assert alone in (None, event.number), events
        if event.step is Step.VERIFY:
            alone = event.number if alone is None else None
    assert found[-1].pauses, "it was compiling while the others were timed"
    timed = [(a, b) for e in found[:2] for step, a, b in e.spans if step == "measure"]
    assert timed
    assert not [1 for a, b in timed for _, c, d in found[-1].spans if max(a, c) < min(b, d)]


def test_the_first_compile_time_leaves_out_the_pauses(tmp_path: Path) -> None:
    payload = {"compile_s": 7.0, "compile_window": [100.0, 107.5]}
    pauses = ((90.0, 101.0), (104.0, 106.0), (107.0, 120.0))
    ending = Ending(Outcome.OK, Step.EXIT, payload=payload, pauses=pauses)
    record = to_record(0, Setting(CompileConfig(), 1), ending)
    assert record.compile_s == pytest.approx(7.0 - 1.0 - 2.0 - 0.5)


def test_a_record_says_when_its_process_worked_those_of_a_first_try_too() -> None:
    first = Ending(Outcome.TIMEOUT, Step.COMPILE, spans=(("import", 10.0, 11.00004),))
    spans = (("import", 20.0, 21.0), ("build", 21.0, 21.0), ("compile", 21.0, 25.0))
    ending = Ending(Outcome.OK, Step.EXIT, spans=spans, first=first)
    record = to_record(0, Setting(CompileConfig(), 1), ending)
    assert record.spans == (("import", 10.0, 11.0), spans[0], spans[2])
    assert record.began == 10.0


def test_a_trial_that_is_cancelled_before_it_began_is_interrupted(tmp_path: Path) -> None:
    executor = LocalExecutor(isolation="spawn", jobs=2)
    executor._queue.append(Job(3, tmp_path, 60.0))
    executor.cancel(3)
    (event,) = executor.wait(0.1)
    assert isinstance(event, Ended) and event.ending.outcome is Outcome.INTERRUPTED
    executor.close()


def test_a_trial_that_cannot_begin_is_an_ending_and_leaves_no_cgroup(tmp_path: Path) -> None:
    executor = LocalExecutor(python="/nowhere/python", isolation="spawn", jobs=1)
    groups = [folder for folder, _ in memory._own_groups()]
    executor.start(Job(3, tmp_path, 60.0, memory_limit_bytes=2**30))
    (event,) = executor.wait(1.0)
    assert isinstance(event, Ended) and event.ending.outcome is Outcome.INFRASTRUCTURE
    assert "cannot be started: No such file" in event.ending.message
    executor.close()
    ours = f"autocompile-{os.getpid()}-*"
    assert not [cgroup for folder in groups for cgroup in folder.glob(ours)]


def test_the_cgroups_of_a_dead_tuner_are_removed() -> None:
    if not can_cgroup():
        pytest.skip("may not make a memory cgroup here")
    code = (
        "from autocompile.execute.memory import Cgroup; c = Cgroup.build(2**30); "
        "print(c.entrance.parent, flush=True); import os; os.kill(os.getpid(), 9)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        left = Path(tuner.stdout.readline().strip())
        # Until it is waited for there is a process of its number, and no other test's tuner
        # removes what is its.
        assert left.is_dir()
    assert can_cgroup()
    assert not left.exists()


def test_a_container_s_quota_counts_as_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, cores in ((["max", "100000"], None), (["150000", "100000"], 2), (["-1", "1"], None)):
        monkeypatch.setattr(memory, "_words", lambda path, found=words: found)
        assert memory.usable_cores() == min(cores or 10**6, len(os.sched_getaffinity(0)))


def test_a_dead_fork_server_is_replaced(own: Callable[..., Bench]) -> None:
    bench = own(isolation="fork", jobs=1)
    starter = bench.executor._starters.of(None)
    starter._fork_server = dead = ForkServer(sys.executable, {}, bench.executor._selector)
    os.kill(dead.pid, 9)
    assert bench.run(TARGETS / "plain.py").outcome is Outcome.OK
    assert starter._fork_server not in (None, dead)


def test_where_no_fork_server_can_live_each_trial_gets_an_interpreter(
    own: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a sitecustomize of some monitoring tool does: a thread in every interpreter.
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(999,), daemon=True, name='watcher').start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    bench = own(jobs=1)
    assert bench.run(TARGETS / "plain.py").outcome is Outcome.OK
    another = bench.start(TARGETS / "plain.py")
    bench.executor.cancel(another)
    bench.end(another)
    (said,) = bench.told  # once is enough
    assert "a thread runs in it: watcher" in said
    with pytest.raises(UsageError, match="cannot be forked here"):
        own(isolation="fork", jobs=1).run(TARGETS / "plain.py")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"isolation": "thread"}, "choose from: auto, fork, spawn"), ({"jobs": 0}, "not 0")],
)
def test_an_executor_that_cannot_be_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        LocalExecutor(**options)  # type: ignore[arg-type]


def test_jobs_follow_the_cores() -> None:
    assert 1 <= default_jobs() <= len(os.sched_getaffinity(0))


def test_the_parent_sleeps_while_a_trial_works(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = shutil.copy(TARGETS / "sleeper.py", tmp_path)
    (tmp_path / "sleep").write_text("build 0")
    monkeypatch.setattr(memory.Cgroup, "build", lambda limit_bytes: None)  # so that it has to look
    looks: list[int] = []
    monkeypatch.setattr(process, "tree_memory_bytes", lambda root: looks.append(root) or 0)
    monkeypatch.setattr(bench.job_factory, "memory_limit_bytes", 8 * 2**30)
    executor, wakings = bench.executor, list[Any]()
    select = executor._selector.select

    def counted(timeout: float | None = None) -> Any:
        wakings.append(timeout)
        return select(timeout)

    monkeypatch.setattr(executor._selector, "select", counted)
    number = bench.start(target)
    bench.until((tmp_path / "asleep").exists)
    executor.wait(0.5)
    wakings.clear()
    looks.clear()
    began = time.monotonic()
    assert not executor.wait(2.0)
    slept_s, woken, looked = time.monotonic() - began, len(wakings), len(looks)
    (tmp_path / "sleep").unlink()
    bench.end(number)
    # However slow the machine is, it wakes no more than twice a second.
    assert slept_s >= 2
    assert 1 <= looked <= woken <= 2 * slept_s + 2


def test_looking_at_memory_takes_a_hundredth_of_a_core_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, looks = MachineClock(), []
    monkeypatch.setattr("autocompile.execute.local.time", clock)
    executor = LocalExecutor(isolation="spawn", jobs=1)

    def look_after(child: object, poll: bool) -> None:
        if poll:
            looks.append(clock.monotonic())
            clock.work(0.03)

    monkeypatch.setattr(executor, "_look_after", look_after)
    child = Mock(gone=False, process=None)
    monkeypatch.setattr(executor, "_children", {0: child})
    for _ in range(1000):
        executor._look_after_all()
        clock.work(0.01)
    assert len(looks) == pytest.approx(clock.monotonic() / 3.0, abs=1)
    monkeypatch.setattr(executor, "_children", {})
    executor.close()


def test_inductors_own_benchmarks_run_alone() -> None:
    code = """
import contextlib, json
from autocompile.trial.process.channel import make_autotuning_exclusive
asked = []
class Channel:
    @contextlib.contextmanager
    def exclusive(self):
        asked.append("in")
        yield
        asked.append("out")
assert make_autotuning_exclusive(Channel()) > 2
from torch._inductor.runtime.benchmarking import benchmarker
took = benchmarker.benchmark_cpu(lambda: asked.append("run"), warmup=1, rep=1)
print(json.dumps([asked[0], asked[-1], set(asked[1:-1]) == {"run"}, took > 0]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["in", "out", True, True]
