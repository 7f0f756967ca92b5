"""The executor and its parts: who may run, clocks, limits, trees, forks; with real processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import TARGETS, Bench, assert_nothing_left
from conftest import Clock as MachineClock

from autocompile.execute import ending, local, memory, trees
from autocompile.execute.child import Child, Clock
from autocompile.execute.ending import conclude
from autocompile.execute.exclusive import Exclusive
from autocompile.execute.executor import Ended, Ending, Event, Job, Stepped
from autocompile.execute.heard import Heard
from autocompile.execute.job import adaptive_timeout_s
from autocompile.execute.local import LocalExecutor
from autocompile.execute.memory import default_jobs
from autocompile.protocol.events import EventName, encode
from autocompile.search.records import to_record
from autocompile.settings.config import CompileConfig, Setting
from autocompile.store.record import Outcome, Step

# Exclusive use -----------------------------------------------------------------------------------


class Room:
    """Trials that are held, let go and told to go, and what must be true of them throughout."""

    def __init__(self) -> None:
        self.present: set[int] = set()
        self.held: set[int] = set()
        self.asked: set[int] = set()
        self.timing: int | None = None
        self.granted: list[int] = []
        self.is_quiet = True
        self.exclusive = Exclusive(
            self.hold, self.release, self.grant, lambda: self.is_quiet
        )

    def hold(self, numbers: list[int]) -> None:
        assert not self.held & set(numbers)
        self.held |= set(numbers)

    def release(self, numbers: list[int]) -> None:
        assert set(numbers) <= self.held
        self.held -= set(numbers)

    def grant(self, number: int) -> None:
        assert self.timing in (None, number)
        assert self.held == self.present - {number}, (
            "somebody moves while another is timed"
        )
        self.timing = number
        self.granted.append(number)

    def enter(self, number: int) -> None:
        self.present.add(number)
        self.exclusive.enter(number)

    def ask(self, number: int) -> None:
        self.asked.add(number)
        self.exclusive.request(number)
        self.exclusive.advance()

    def give_back(self) -> None:
        assert self.timing is not None
        number, self.timing = self.timing, None
        self.asked.discard(number)
        self.exclusive.give_back(number)

    def leave(self, number: int) -> None:
        for group in (self.present, self.held, self.asked):
            group.discard(number)
        self.timing = None if self.timing == number else self.timing
        self.exclusive.leave(number)


def test_while_one_is_timed_all_others_stand_still() -> None:
    room = Room()
    for number in (1, 2, 3):
        room.enter(number)
    for number in (
        2,
        3,
        2,
    ):  # of two processes of one trial the second would wait for ever
        room.ask(number)
    assert room.exclusive.taken
    room.give_back()
    assert room.granted == [2, 2, 3], "first come, first served"
    room.give_back()
    assert not room.held
    assert not room.exclusive.taken


def test_whatever_happens_nobody_is_forgotten_and_nobody_runs_beside_a_timing() -> None:
    for seed in range(300):
        rng, room = random.Random(seed), Room()
        for next_number in range(60):
            action = rng.choice(["enter", "ask", "give_back", "leave", "quiet"])
            if action == "enter" and not room.exclusive.taken:
                room.enter(next_number)
            elif action == "ask" and (
                able := sorted(room.present - room.held - room.asked)
            ):
                room.ask(rng.choice(able))
            elif action == "give_back" and room.timing is not None:
                room.give_back()
            elif action == "leave" and room.present:
                room.leave(rng.choice(sorted(room.present)))
            elif action == "quiet":
                room.is_quiet = not room.is_quiet
                room.exclusive.advance()
            waiting = room.asked - {room.timing}
            assert room.timing is not None or room.held <= waiting, seed
        room.is_quiet = True
        room.exclusive.advance()
        while room.timing is not None:
            room.give_back()
        assert not room.held, seed
        assert not room.asked, seed


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
    assert clock.step_s == pytest.approx({"import": 0.0, "compile": 0.05})
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
    assert adaptive_timeout_s(20, seen) == 20


def ended(step: Step = Step.COMPILE, **seen: Any) -> Child:
    job = Job(0, Path(), timeout_s=60.0, total_timeout_s=9.0)
    child = Child(job, Mock(), Mock(), **seen)
    child.clock.enter(step)
    return child


STACK = b'Current thread (most recent call first):\n  File "/x/m.py", line 7 in f\n'


BYE = {"code": 3, "last_output": b"good\nbye\n"}
FAILED = {"outcome": "compile_error", "step": "compile", "message": "g++ died"}


@pytest.mark.parametrize(
    ("seen", "is_oom", "outcome", "words"),
    [
        ({"code": -11}, False, "crashed", "SIGSEGV in compile"),
        (BYE, False, "crashed", "exited with code 3 in compile without a result: bye"),
        ({}, False, "infrastructure", "killed from outside"),
        ({"code": -9}, True, "out_of_memory", "kernel"),
        (
            {"code": -9, "killed_for": "total", "dump": STACK},
            False,
            "timeout",
            "took more than 9 s, in f (m.py:7)",
        ),
        (
            {"code": -9, "killed_for": "interrupted"},
            True,
            "interrupted",
            "stopped before",
        ),
        # a compile worker was killed, and the trial could only say that its compile failed
        ({"result": FAILED, "code": 0}, True, "out_of_memory", "g++ died"),
        # a result that has arrived is final
        ({"result": {"outcome": "ok", "step": "exit"}, "code": -9}, True, "ok", ""),
        ({"result": {"outcome": "fine"}, "code": 0}, False, "crashed", "malformed"),
    ],
)
def test_what_was_seen_has_a_name(
    seen: dict[str, Any], is_oom: bool, outcome: str, words: str
) -> None:
    found, _, message = conclude(ended(**seen), is_oom)
    assert found.value == outcome
    assert words in message


@pytest.mark.parametrize(
    ("garbage", "outcome"),
    [("no JSON", Outcome.CRASHED), (None, Outcome.OUT_OF_MEMORY)],
)
def test_a_kill_of_ours_is_not_laid_at_the_kernels_door(
    monkeypatch: pytest.MonkeyPatch, garbage: str | None, outcome: Outcome
) -> None:
    monkeypatch.setattr(
        ending, "oom_kills", lambda: 1
    )  # a neighbour was killed for memory
    assert ending.ending_of(ended(code=-9, garbage=garbage)).outcome is outcome


# What a trial says -------------------------------------------------------------------------------


def listening(tmp_path: Path) -> tuple[Child, Heard, list[Event], Mock, list[int]]:
    """A trial without a process, and what takes its events."""
    child = Child.of(Job(7, tmp_path, timeout_s=1.0, toolchain=tmp_path))
    reported: list[Event] = []
    rooms: list[int] = []
    around = Mock()
    heard = Heard(
        child, around.starter, around.exclusive, reported.append, rooms.append
    )
    return child, heard, reported, around, rooms


def test_a_trials_events_are_the_methods_of_one_class_in_the_order_in_which_they_come() -> (
    None
):
    methods = [name for name in vars(Heard) if not name.startswith("_")]
    assert methods == [event.value for event in EventName]


def test_each_event_of_a_trial_is_taken(tmp_path: Path) -> None:
    child, heard, reported, around, rooms = listening(tmp_path)

    def says(event: EventName, **fields: Any) -> None:
        assert heard(encode(child.nonce, event, **fields).encode())

    says(EventName.WORKER_BEGAN, pid=11)
    says(EventName.STEP, step="build")
    says(EventName.MODULES, names=["numpy"])
    says(EventName.TOOLCHAIN)
    forward = {
        "parameters": 2,
        "state": 0,
        "steps": False,
        "gives_back": False,
        "call": 1,
    }
    says(EventName.ROOM, phases=[forward], free_bytes=35, context_bytes=2)
    says(EventName.EXCLUSIVE)
    says(EventName.SHARED)
    says(EventName.MEASURED, outcome="ok")
    says(EventName.RESULT, outcome="ok", step="exit")
    says(EventName.RESULT, outcome="crashed", step="exit")
    says(EventName.WORKER_ENDED, code=3)
    assert (child.worker, child.code, rooms) == (11, 3, [3])
    assert reported == [Stepped(7, Step.BUILD)] and child.clock.step is Step.EXIT
    assert child.measured == {"outcome": "ok"}
    assert child.result == {"outcome": "ok", "step": "exit"}, "the first is final"
    assert [call[0] for call in around.mock_calls] == [
        "starter.warm",
        "starter.warm",
        "exclusive.request",
        "exclusive.give_back",
    ]
    child.close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"event": "dance"', "'dance' is not a valid EventName"),
        ('"event": "step", "step": "dance"', "a wrong 'step': 'dance' is not"),
        ('"event": "step"', "a wrong 'step': "),
        ('"event": "step", "step": "build", "more": 1', "a wrong 'step': "),
        ('"event": "worker_began", "pid": null', "a wrong 'worker_began': "),
        ('"event": "worker_ended", "code": Infinity', "a wrong 'worker_ended': "),
        ('"event": "modules", "names": 3', "a wrong 'modules': "),
    ],
)
def test_what_is_no_event_of_ours_is_an_outcome_and_no_exception(
    tmp_path: Path, line: str, said: str
) -> None:
    child, heard, *_ = listening(tmp_path)
    assert not heard(f'{{"nonce": "{child.nonce}", {line}}}\n'.encode())
    outcome, _, message = conclude(child)
    assert outcome is Outcome.CRASHED
    assert message.startswith(f"wrote to the result channel: {said}")
    child.close()


# Memory and processes ----------------------------------------------------------------------------


def test_memory_and_jobs_are_those_of_the_machine() -> None:
    available, cores = memory.available_memory_bytes(), len(os.sched_getaffinity(0))
    assert 0 < available <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1 <= default_jobs() <= cores


Group = Callable[..., Path]


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """Makes this process one of a group, and gives its folder; values of files by their paths."""

    def make(version: int, own: str, files: dict[str, str]) -> Path:
        mount = tmp_path / f"{version}{len(list(tmp_path.iterdir()))}"
        (mount / own).mkdir(parents=True)
        for path, text in files.items():
            (mount / path).write_text(f"{text}\n")
        kind, flags = ("cgroup2", "rw") if version == 2 else ("cgroup", "rw,cpu,memory")
        ours = {
            "/proc/self/cgroup": f"0:{'cpu,memory' if version == 1 else ''}:/{own}",
            "/proc/self/mounts": f"cgroup {mount} {kind} {flags} 0 0",
        }
        read_text = Path.read_text
        monkeypatch.setattr(
            Path, "read_text", lambda p: ours.get(str(p)) or read_text(p)
        )
        return mount / own

    return make


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (2, {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}),
        (2, {"a/cpu.max": "max 100000", "a/b/cpu.max": "100000 100000"}),
        (1, {"a/cpu.cfs_quota_us": "50000", "a/cpu.cfs_period_us": "100000",
             "a/b/cpu.cfs_quota_us": "-1", "a/b/cpu.cfs_period_us": "100000"}),
    ],
)  # fmt: skip
def test_cores_are_as_few_as_any_group_around_us_may_use(
    group: Group, version: int, files: dict[str, str]
) -> None:
    group(version, "a/b", dict.fromkeys(files, "max" if version == 2 else "-1"))
    assert memory.usable_cores() == len(os.sched_getaffinity(0))
    group(version, "a/b", files)
    assert memory.usable_cores() == 1


def test_memory_is_as_little_as_any_group_around_us_may_use(group: Group) -> None:
    outer = {"a/memory.max": str(2**20), "a/memory.current": str(2**19)}
    group(2, "a/b/c", {**outer, "a/b/c/memory.max": "max"})
    assert memory.available_memory_bytes() == 2**19


# Two processes below its root, each in a session of its own.
TREE = ["sh", "-c", "setsid sh -c 'setsid sleep 1000 & wait' & wait"]


def states(pids: Iterable[int]) -> set[str]:
    found = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            found.add(
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            )
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = (
        time.monotonic() + 60
    )  # one that is in the kernel stops when it comes out
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_grown(root: int) -> bool:
    names = [Path(f"/proc/{pid}/comm").read_text() for pid in trees.below([root])[root]]
    return names == ["sh\n", "sleep\n"]


@pytest.mark.parametrize("is_grouped", [True, False])
def test_trees_are_paused_and_go_on_and_are_killed(is_grouped: bool) -> None:
    roots = [subprocess.Popen(TREE) for _ in range(2)]
    try:
        until(lambda: all(is_grown(root.pid) for root in roots))
        grown = trees.below([root.pid for root in roots])
        groups = [tree[0] for tree in grown.values()] if is_grouped else []
        assert trees.pause([*grown], groups) == grown
        first, second = grown.values()
        until(lambda: states(first + second) == {"T"})
        assert "T" not in states(grown), "the roots themselves go on"
        trees.resume(first)
        until(lambda: "T" not in states(first))
        assert states(second) == {"T"}
    finally:
        ended = [trees.kill_tree(root.pid, "nobody's") for root in roots]
        for root in roots:
            root.wait()
    assert ended == [True, True]
    assert states(first + second) <= {"Z"}


def test_a_trial_is_stopped_whatever_the_numbers_of_its_pipes_are() -> None:
    """A tuner with many open files has them above 1023."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    ours, theirs = os.pipe()
    high = fcntl.fcntl(ours, fcntl.F_DUPFD, 1100)

    def read(child: Any, descriptor: int) -> bool:
        child.worker = int(os.read(descriptor, 8))
        return True

    executor = LocalExecutor(isolation="spawn", jobs=1)
    try:
        with subprocess.Popen(["sleep", "60"]) as root:
            child = Mock(gone=False, worker=None, supervisor=root.pid, groups=[])
            child.pipes.results = high
            os.write(theirs, b"7")
            try:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(executor, "_read", read)
                    patch.setattr(executor, "_children", {0: child})
                    executor._hold([0])
                assert child.worker == 7
            finally:
                executor.close()
                root.kill()
    finally:
        for each in (ours, theirs, high):
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def test_a_tree_is_known_where_the_kernel_lists_no_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CONFIG_PROC_CHILDREN is a choice of who builds it."""
    read_text = Path.read_text

    def read(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.name == "children":
            raise FileNotFoundError(path)
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read)
    with subprocess.Popen(TREE) as root:
        try:
            until(lambda: is_grown(root.pid))
        finally:
            assert trees.kill_tree(root.pid, "nobody's")


LATE = """
import os, sys, time
print(os.getpid(), flush=True)
sys.stdin.readline()
os.setsid()
print(flush=True)
time.sleep(1000)
"""


def test_one_that_does_not_lead_its_group_yet_is_stopped_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", LATE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, bufsize=0, **pipes) as root:
        worker, killpg = int(root.stdout.readline()), os.killpg

        def too_early(group: int, number: int) -> None:
            try:
                killpg(group, number)
            finally:  # it comes to lead its group just after the signal has found none
                root.stdin.write(b"\n")
                root.stdout.readline()

        monkeypatch.setattr(os, "killpg", too_early)
        try:
            trees.pause([root.pid], [worker], patience_s=60)
            assert states([worker]) == {"T"}
        finally:
            trees.kill_tree(root.pid, "nobody's")


# The executor ------------------------------------------------------------------------------------


def steps(events: list[Event]) -> list[Stepped]:
    return [e for e in events if isinstance(e, Stepped)]


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_both_ways_to_start_a_trial_give_the_same(
    isolation: str, bench: Bench, tmp_path: Path
) -> None:
    starts = (
        bench if isolation == "fork" else Bench(tmp_path, isolation="spawn", jobs=1)
    )
    before = time.time()
    with starts.recorded() as events:
        ending = starts.run(TARGETS / "plain.py", "aot_eager")
    if starts is not bench:
        starts.executor.close()
    assert ending.outcome is Outcome.OK, ending.message
    (_, begin, _), (_, _, end) = ending.spans[0], ending.spans[-1]
    assert before - 0.1 < begin < end < time.time() + 0.1
    assert sum(b - a for _, a, b in ending.spans) == pytest.approx(
        ending.wall_s, abs=1e-3
    )
    assert [e.step.value for e in steps(events)] == [
        "import", "build", "eager", "compile", "verify", "measure", "verify", "verify",
    ]  # fmt: skip
    assert not ending.doubts
    assert_nothing_left("AUTOCOMPILE_TRIAL=")


def test_trials_compile_side_by_side_and_are_timed_alone(
    bench: Bench, tmp_path: Path
) -> None:
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
    alone, verified = None, Counter[int]()
    for event in steps(events):
        assert alone in (None, event.number), events
        if event.step is Step.VERIFY:
            verified[event.number] += 1
            if verified[event.number] <= 2:  # after that come the later checks
                alone = event.number if verified[event.number] == 1 else None
    assert found[-1].pauses, "it was compiling while the others were timed"
    timed = [(a, b) for e in found[:2] for step, a, b in e.spans if step == "measure"]
    assert timed
    assert not [
        1 for a, b in timed for _, c, d in found[-1].spans if max(a, c) < min(b, d)
    ]


MEASURED = {"measurement": {"eager_s": [1.0], "compiled_s": [1.0]}}


def test_the_first_compile_time_leaves_out_the_pauses(tmp_path: Path) -> None:
    payload = {**MEASURED, "compile_s": 7.0, "compile_window": [100.0, 107.5]}
    pauses = ((90.0, 101.0), (104.0, 106.0), (107.0, 120.0))
    ending = Ending(Outcome.OK, Step.EXIT, payload=payload, pauses=pauses)
    record = to_record(0, Setting(CompileConfig(), 1), ending)
    assert record.compile_s == pytest.approx(7.0 - 1.0 - 2.0 - 0.5)


def test_a_record_says_when_its_process_worked_those_of_a_first_try_too() -> None:
    first = Ending(Outcome.TIMEOUT, Step.COMPILE, spans=(("import", 10.0, 11.00004),))
    spans = (("import", 20.0, 21.0), ("build", 21.0, 21.0), ("compile", 21.0, 25.0))
    ending = Ending(Outcome.OK, Step.EXIT, payload=MEASURED, spans=spans, first=first)
    record = to_record(0, Setting(CompileConfig(), 1), ending)
    assert record.spans == (("import", 10.0, 11.0), spans[0], spans[2])
    assert record.began == 10.0


def test_a_trial_that_cannot_begin_is_an_ending(tmp_path: Path) -> None:
    executor = LocalExecutor(isolation="spawn", jobs=1)
    executor.start(
        Job(3, tmp_path, 60.0, memory_limit_bytes=2**30, python="/nowhere/python")
    )
    (event,) = executor.wait(1.0)
    assert isinstance(event, Ended) and event.ending.outcome is Outcome.INFRASTRUCTURE
    assert "cannot be started: No such file" in event.ending.message
    executor.close()


def test_the_parent_sleeps_while_a_trial_works(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = shutil.copy(TARGETS / "sleeper.py", tmp_path)
    (tmp_path / "sleep").write_text("build 0")
    looks: list[Any] = []
    monkeypatch.setattr(
        local, "tree_memory_bytes", lambda roots: looks.append(roots) or {}
    )
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


def test_the_memory_of_a_tree_is_that_of_all_its_processes() -> None:
    hold = "import sys; held = bytearray(2**26); print(flush=True); sys.stdin.read()"
    below = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", below], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as root:
        assert root.stdout is not None and root.stdin is not None
        root.stdout.readline()
        held = trees.tree_memory_bytes([root.pid, os.getpid()])
        assert 2**26 <= held[root.pid] < 2**27
        assert held[os.getpid()] >= 2**26
        root.stdin.close()


def test_looking_at_memory_takes_a_hundredth_of_a_core_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, looks = MachineClock(), []
    monkeypatch.setattr("autocompile.execute.local.time", clock)
    executor = LocalExecutor(isolation="spawn", jobs=1)

    def look(roots: object) -> dict[int, int]:
        looks.append(clock.monotonic())
        clock.work(0.03)
        return {}

    monkeypatch.setattr(local, "tree_memory_bytes", look)
    child = Mock(gone=False, process=None, left_s=lambda: 1.0)
    child.job.memory_limit_bytes = 2**30
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
from autocompile.trial.channel import make_autotuning_exclusive
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
