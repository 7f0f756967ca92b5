"""Waiting for the process that trials are forked from; none of these needs torch."""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import assert_nothing_left

from autocompile.errors import UsageError
from autocompile.execute import starter
from autocompile.execute.executor import Ended, Ending, Event, Job, Told
from autocompile.execute.local import LocalExecutor
from autocompile.execute.starter import ForkServer, ForkServerError, ProcessStarter
from autocompile.store.record import Outcome, Step

Interpreter = Callable[[str], str]
SILENT = "import time; time.sleep(1000)"
ANSWERS = """
import json, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[3]))
def say(**answer): connection.send_bytes(json.dumps(answer).encode())
def heard():
    while True:
        try:
            yield json.loads(connection.recv_bytes())["do"]
        except EOFError:
            return
"""


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    """Makes a program that stands in for python, whatever it is told to run."""

    def make(source: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\n{source}")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as made:
        yield made


@pytest.fixture
def serve(
    interpreter: Interpreter, selector: selectors.BaseSelector
) -> Iterator[Callable]:
    """Starts a fork server that does what a program says."""
    made: list[ForkServer] = []

    def start(source: str) -> ForkServer:
        made.append(ForkServer(interpreter(source), {}, selector))
        return made[-1]

    yield start
    for one in made:
        one.close()
    assert not selector.get_map()


def until_ended(executor: LocalExecutor, number: int) -> tuple[Ending, list[Event]]:
    events: list[Event] = []
    deadline = time.monotonic() + 60
    while not any(isinstance(e, Ended) and e.number == number for e in events):
        assert time.monotonic() < deadline, events
        events += executor.wait(0.5)
    return next(
        e.ending for e in events if isinstance(e, Ended) and e.number == number
    ), events


def until_ready(one: ForkServer, selector: selectors.BaseSelector) -> None:
    deadline = time.monotonic() + 60
    while not one.is_ready():
        assert time.monotonic() < deadline
        selector.select(0.5)


def job(number: int, folder: Path, python: str, fresh: bool = False) -> Job:
    path = folder / str(number)
    path.mkdir()
    return Job(number, path, timeout_s=1.0, python=python, fresh=fresh)


def test_deadlines_and_ctrl_c_are_kept_while_a_fork_server_starts(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    silent = interpreter(SILENT)
    executor = LocalExecutor(jobs=2)
    try:
        executor.start(job(1, tmp_path, silent, fresh=True))
        began = time.monotonic()
        executor.start(
            job(2, tmp_path, silent)
        )  # waits for a fork server that never answers
        assert time.monotonic() - began < 30
        ending, events = until_ended(executor, 1)
        assert ending.outcome is Outcome.TIMEOUT
        assert not any(isinstance(e, (Told, Ended)) and e != events[-1] for e in events)
        executor.cancel(2)
        assert until_ended(executor, 2)[0].outcome is Outcome.INTERRUPTED
        assert executor.wait(0.0) == []
    finally:
        executor.close()
    assert_nothing_left(silent)


@pytest.mark.parametrize(
    ("source", "starts", "why"),
    [
        # One that died may have been killed from outside, and is replaced.
        ("sys.exit('it broke')", 3, "the fork server exited: it broke"),
        (SILENT, 3, "the fork server has not answered for 0 s"),
        # What a sitecustomize of some monitoring tool does: a thread in every interpreter.
        (
            f"{ANSWERS}say(refused='a thread runs in it: watcher')",
            1,
            "runs in it: watcher",
        ),
    ],
)
def test_where_no_fork_server_can_live_each_trial_gets_an_interpreter(
    tmp_path: Path,
    interpreter: Interpreter,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    starts: int,
    why: str,
) -> None:
    patience_s = 0.2 if source == SILENT else 60.0
    monkeypatch.setattr(starter, "_PATIENCE_S", patience_s)
    log = tmp_path / "started"
    what = f"import sys; print(sys.argv[2], file=open({str(log)!r}, 'a'))\n"
    python = interpreter(
        f"{what}if 'fork_server' not in sys.argv[2]: sys.exit()\n{source}"
    )
    told = []
    executor = LocalExecutor(jobs=1)
    try:
        for number in (1, 2):
            executor.start(job(number, tmp_path, python))
            told += [
                e.text for e in until_ended(executor, number)[1] if isinstance(e, Told)
            ]
    finally:
        executor.close()
    (said,) = told  # once is enough
    assert said.startswith("each trial starts its own interpreter") and why in said
    server, trial = "autocompile.trial.fork_server", "autocompile.trial"
    assert log.read_text().split() == [*[server] * starts, trial, trial]
    executor = LocalExecutor(isolation="fork", jobs=1)
    executor.start(job(3, tmp_path, python))
    with pytest.raises(UsageError, match="cannot be forked here"):
        executor.wait(60.0)
    executor.close()
    assert_nothing_left(python)


def test_within_a_suite_one_starter_after_the_other_has_the_same_fork_server(
    tmp_path: Path,
    interpreter: Interpreter,
    monkeypatch: pytest.MonkeyPatch,
    selector: selectors.BaseSelector,
) -> None:
    log = tmp_path / "started"
    begins = f"print('once', file=open({str(log)!r}, 'a'))\n"
    python = interpreter(f"{ANSWERS}{begins}say()\nfor _ in heard(): say()")
    monkeypatch.setattr(sys, "executable", python)

    def used(share: str) -> None:
        one = ProcessStarter(python, "fork", print, selector, share)
        while not one.is_ready(Job(1, tmp_path, timeout_s=1.0)):
            selector.select(0.5)
        one.close()
        assert not selector.get_map()

    with starter.shared_fork_servers():
        used("timm")
        used("timm")
        assert log.read_text().split() == ["once"]
        used("")  # a file of the user's, which may have modules of any name
        used("transformers")
        assert log.read_text().split() == ["once"] * 3
        (idle,) = (one for what, one in (starter._idle or {}).items() if what == "timm")
        idle._process.kill()
        idle._process.wait()
        used("timm")  # one that has died is no failure of what comes next
        assert log.read_text().split() == ["once"] * 4
    assert_nothing_left(python)
    used("timm")
    assert log.read_text().split() == ["once"] * 5
    assert_nothing_left(python)


def test_exclusive_use_waits_for_a_fork_server_that_is_busy() -> None:
    executor = LocalExecutor(isolation="spawn", jobs=1)
    executor._starters["other"] = other = Mock(is_busy=True)
    told, tell = os.pipe()
    os.set_blocking(told, False)
    executor._children[3] = Mock(pipes=Mock(control=tell))
    executor._exclusive.enter(3)
    executor._exclusive.request(3)
    executor._exclusive.advance()
    assert executor._exclusive.taken
    with pytest.raises(BlockingIOError):
        os.read(told, 1)
    other.is_busy = False
    executor._exclusive.advance()
    assert os.read(told, 1) == b"!"
    executor._children.clear()
    executor.close()
    for descriptor in (told, tell):
        os.close(descriptor)


def test_it_prepares_once_after_it_was_warmed(
    tmp_path: Path, serve: Callable[[str], ForkServer], selector: selectors.BaseSelector
) -> None:
    heard = tmp_path / "heard"
    one = serve(
        f"{ANSWERS}file = open({str(heard)!r}, 'w')\n"
        "say()\n"
        "for asked in heard():\n"
        "    print(asked, file=file, flush=True)\n"
        "    say()\n"
    )
    assert one.is_busy
    until_ready(one, selector)
    assert not one.is_busy
    one.warm(["json"], None)
    until_ready(one, selector)
    one.warm([], tmp_path)
    one.warm(["os"], None)
    until_ready(one, selector)
    until_ready(one, selector)
    assert heard.read_text().split() == ["warm", "warm", "warm", "prepare"]


BUILDS = """
say()
for asked in heard():
    if asked == "build":
        say(step="build")
        say(built=False, why="it uses the GPU", was_ended=False)
    else:
        time.sleep(1000)
"""


def test_it_says_why_a_target_is_not_built_and_has_no_longer_patience_after_it(
    tmp_path: Path,
    serve: Callable[[str], ForkServer],
    selector: selectors.BaseSelector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = serve(f"import time\n{ANSWERS}{BUILDS}")
    until_ready(one, selector)
    one.build(Job(-1, tmp_path, timeout_s=1000.0, made_of="it", builds=True))
    until_ready(one, selector)
    assert (one.built, one.not_built, one.step) == ("", "it uses the GPU", Step.BUILD)
    monkeypatch.setattr(starter, "_PATIENCE_S", 0.2)
    one.warm(["json"], None)
    with pytest.raises(ForkServerError, match="has not answered for 0 s"):
        until_ready(one, selector)


DIES_ONCE_BUILT = """
say()
for asked in heard():
    print(asked, file=open({log!r}, "a"))
    if asked == "build":
        say(built=True)
    else:
        sys.exit("killed")
"""


def test_where_what_has_built_a_target_dies_no_other_builds_it(
    tmp_path: Path, interpreter: Interpreter, selector: selectors.BaseSelector
) -> None:
    log = tmp_path / "asked"
    python = interpreter(ANSWERS + DIES_ONCE_BUILT.format(log=str(log)))
    told = list[str]()
    one = ProcessStarter(python, "fork", told.append, selector)
    job = Job(-1, tmp_path, timeout_s=60.0, made_of="it", builds=True)

    def until_it_is_ready() -> None:
        while not one.is_ready(job):
            selector.select(0.5)

    try:
        until_it_is_ready()
        assert one.start(job) is None  # it dies when it is to fork
        until_it_is_ready()
        assert log.read_text().split() == ["build", "fork"]
        (why,) = told
        assert why.startswith(
            "each trial builds the model from now on: the fork server"
        )
    finally:
        one.close()


def test_one_that_has_ended_wakes_nobody_again(
    serve: Callable[[str], ForkServer], selector: selectors.BaseSelector
) -> None:
    one = serve("raise SystemExit")
    with pytest.raises(ForkServerError, match="the fork server exited"):
        until_ready(one, selector)
    assert not one.is_busy
    assert not selector.get_map(), "the end of a socket would wake for ever"


def test_a_fork_server_that_cannot_be_started_says_why(
    selector: selectors.BaseSelector,
) -> None:
    with pytest.raises(ForkServerError, match=r"cannot be started: .*No such file"):
        ForkServer("/nowhere/python", {}, selector)
    assert not selector.get_map()


def test_the_word_of_a_fork_is_not_waited_for_longer_than_a_while(
    serve: Callable[[str], ForkServer],
    selector: selectors.BaseSelector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starter, "_FORK_S", 0.2)
    one = serve(f"{ANSWERS}say()\n{SILENT}")
    until_ready(one, selector)
    with pytest.raises(ForkServerError, match="has not forked"):
        one.fork({}, (0, 1, 2))


NOTES = """
import time
say()
for asked in heard():
    time.sleep(0.2 if asked == "prepare" else 0)
    with open({notes!r}, "a") as file:
        file.write(asked + " ")
    say()
"""


def test_nothing_is_measured_beside_the_toolchain_that_is_made_meanwhile(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """The compile that waits for it would come with the next trial, long after a probe's timing."""
    notes = tmp_path / "notes"
    python = interpreter(ANSWERS + NOTES.format(notes=str(notes)))
    executor = LocalExecutor(isolation="fork", jobs=1)
    try:
        ours = executor._starter(python)
        deadline = time.monotonic() + 60
        while not ours.is_ready(Job(0, tmp_path, 60.0, python=python)):
            assert time.monotonic() < deadline
        ours.warm((), tmp_path / "toolchain")
        while not executor._is_quiet():
            assert time.monotonic() < deadline
            for key, _ in executor._selector.select(0.05):
                key.data()
        assert notes.read_text() == "warm prepare "
    finally:
        executor.close()
