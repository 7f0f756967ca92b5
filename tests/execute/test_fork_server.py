"""Waiting for the process that trials are forked from; none of these needs torch."""

from __future__ import annotations

import json
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import assert_nothing_left

from autocompile.execute import fork_server as fork_server
from autocompile.execute.executor import Ended, Ending, Event, Job, Told
from autocompile.execute.fork_server import ForkServer, ForkServerError
from autocompile.execute.local import LocalExecutor
from autocompile.store.record import Outcome

Interpreter = Callable[[str], str]
ANSWERS = """
import json, socket, sys
connection = socket.socket(fileno=int(sys.argv[3]))
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


def until_ended(executor: LocalExecutor, number: int) -> tuple[Ending, list[Event]]:
    events: list[Event] = []
    deadline = time.monotonic() + 60
    while not any(isinstance(e, Ended) and e.number == number for e in events):
        assert time.monotonic() < deadline, events
        events += executor.wait(0.5)
    return next(e.ending for e in events if isinstance(e, Ended) and e.number == number), events


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
    silent = interpreter("import time; time.sleep(1000)")
    executor = LocalExecutor(jobs=2)
    try:
        executor.start(job(1, tmp_path, silent, fresh=True))
        began = time.monotonic()
        executor.start(job(2, tmp_path, silent))  # waits for a fork server that never answers
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


def test_a_fork_server_that_never_answers_is_given_up(
    tmp_path: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_PATIENCE_S", 0.2)
    silent = interpreter("import time; time.sleep(1000)")
    executor = LocalExecutor(jobs=1)
    try:
        executor.start(job(1, tmp_path, silent))
        ending, events = until_ended(executor, 1)
    finally:
        executor.close()
    assert ending.outcome is Outcome.TIMEOUT, "in an interpreter of its own, which is as silent"
    (told,) = [e.text for e in events if isinstance(e, Told)]
    assert told.startswith("each trial starts its own interpreter")
    assert "has not answered for 0 s" in told
    assert_nothing_left(silent)


def test_exclusive_use_waits_for_a_fork_server_that_is_busy() -> None:
    executor = LocalExecutor(isolation="spawn", jobs=1)
    executor._starters, executor._exclusive = Mock(are_busy=True), Mock(taken=False)
    executor._asking.append(3)
    executor._pass_on_requests()
    executor._exclusive.request.assert_not_called()
    executor._starters.are_busy = False
    executor._pass_on_requests()
    executor._exclusive.request.assert_called_once_with(3)
    executor.close()


def test_it_prepares_once_after_it_was_warmed(
    tmp_path: Path, interpreter: Interpreter, selector: selectors.BaseSelector
) -> None:
    heard = tmp_path / "heard"
    python = interpreter(
        f"{ANSWERS}file = open({str(heard)!r}, 'w')\n"
        "connection.sendall(b'{\"memory_bytes\": 1}\\n')\n"
        "for line in connection.makefile():\n"
        "    print(json.loads(line)['do'], file=file, flush=True)\n"
        "    connection.sendall(b'{\"memory_bytes\": 1}\\n')\n"
    )
    one = ForkServer(python, {}, selector)
    try:
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
    finally:
        one.close()
    assert not selector.get_map()


@pytest.mark.parametrize(
    ("source", "reason", "is_unfit"),
    [
        (f"{ANSWERS}connection.sendall(json.dumps(dict(refused='no')).encode() + b'\\n')", "no", 1),
        ("import sys; sys.exit('it broke')", "server exited: it broke", 0),
        (f"{ANSWERS}connection.sendall(b'hello\\n')", "invalid answer", 0),
        (f"{ANSWERS}connection.sendall(b'[1]\\n')", "invalid answer", 0),
    ],
)
def test_why_there_is_none_is_told_and_wakes_nobody_again(
    interpreter: Interpreter,
    selector: selectors.BaseSelector,
    source: str,
    reason: str,
    is_unfit: int,
) -> None:
    one = ForkServer(interpreter(source), {}, selector)
    try:
        with pytest.raises(ForkServerError, match=reason) as caught:
            until_ready(one, selector)
        assert caught.value.is_unfit is bool(is_unfit)
        assert not one.is_busy
        assert not selector.get_map(), "the end of a socket would wake for ever"
    finally:
        one.close()


def test_a_fork_server_that_cannot_be_started_says_why(selector: selectors.BaseSelector) -> None:
    with pytest.raises(ForkServerError, match=r"cannot be started: .*No such file"):
        ForkServer("/nowhere/python", {}, selector)
    assert not selector.get_map()


def test_the_word_of_a_fork_is_not_waited_for_longer_than_a_while(
    interpreter: Interpreter, selector: selectors.BaseSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_FORK_S", 0.2)
    ready = json.dumps({"memory_bytes": 1})
    python = interpreter(
        f"{ANSWERS}import time\nconnection.sendall(b'{ready}\\n')\ntime.sleep(1000)"
    )
    one = ForkServer(python, {}, selector)
    try:
        until_ready(one, selector)
        with pytest.raises(ForkServerError, match="has not forked"):
            one.fork({}, (0, 1, 2))
    finally:
        one.close()
