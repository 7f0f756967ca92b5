"""What a model is called with is noted, and nothing of what tensors hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from conftest import assert_nothing_left
from torch._dynamo import register_backend

from autocompile.errors import UsageError
from autocompile.runtime.applying import apply_to_phase
from autocompile.runtime.recording import record
from autocompile.settings.config import CompileConfig
from autocompile.store.call_journal import Journal, called_modules
from autocompile.store.recorded_calls import read_calls

PROGRAM = """
import sys, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x, scale=1):
        return self.layer(x) * scale
net = Net()
for rows in (3, 5, 3):
    net(torch.randn(rows, 4), scale=2)
torch.nn.ReLU()(torch.ones(2))
print(sys.argv[1:])
sys.exit(0)
"""


class Net(torch.nn.Module):
    def forward(self, ids: torch.Tensor, **others: Any) -> torch.Tensor:
        return ids * 2


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh()


def test_calls_are_noted_in_order(tmp_path: Path) -> None:
    net = Net()
    with record(net, tmp_path / "calls.json"):
        for length in (3, 5, 3):
            net(torch.arange(length), mask=torch.ones(2, dtype=torch.bool), kind="fast")
    net(torch.arange(9))
    calls = read_calls(tmp_path / "calls.json")
    assert (calls.model, calls.order, len(calls.distinct)) == ("Net", (0, 1, 0), 2)
    ids = calls.distinct[1]["args"][0]["tensor"]
    assert (ids["shape"], ids["dtype"], ids["low"], ids["high"]) == ([5], "int64", 0, 4)
    assert calls.distinct[1]["kwargs"]["kind"] == "fast"


def test_no_contents_are_noted(tmp_path: Path) -> None:
    net, secret = Net(), "what a user has typed, which is longer than a name is"
    with record(net, tmp_path / "calls.json"):
        net(
            torch.tensor([0.123456]),
            text=secret,
            table={"x": object()},
            many=float("nan"),
        )
    text = (tmp_path / "calls.json").read_text()
    assert "0.123" not in text
    assert "typed" not in text
    assert read_calls(tmp_path / "calls.json").distinct[0]["kwargs"] == {
        "text": {"object": "str"},
        "table": {"dict": {"x": {"object": "object"}}},
        "many": {"object": "float"},
    }


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("compiled", ["wrapped", "in place", "applied"])
def test_a_compiled_model_is_recorded_and_stays_as_it_is(
    tmp_path: Path, compiled: str, is_warm: bool
) -> None:
    net: Any = Layer()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    if compiled == "wrapped":
        net = torch.compile(net, backend=backend, fullgraph=True, dynamic=False)
    elif compiled == "in place":
        net.compile(backend=backend, fullgraph=True, dynamic=False)
    else:
        register_backend(backend, name=(name := f"seen_{is_warm}"))
        apply_to_phase(net, "forward", CompileConfig(name, fullgraph=True))
    if is_warm:
        net(torch.ones(2, 4))
    with record(net, tmp_path / "calls.json"):
        net(torch.ones(2, 4))
        net(torch.ones(2, 4))
    compiled_once = len(graphs)
    net(torch.ones(2, 4))
    calls = read_calls(tmp_path / "calls.json")
    assert (calls.model, calls.order) == ("Layer", (0, 0))
    assert compiled_once == len(graphs) == 1


def test_without_a_call_it_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="no call of Net was seen"),
        record(Net(), tmp_path / "calls.json"),
    ):
        pass
    assert not (tmp_path / "calls.json").exists()


def test_an_error_of_the_users_own_goes_first(tmp_path: Path) -> None:
    with pytest.raises(KeyError), record(Net(), tmp_path / "calls.json"):
        raise KeyError


def test_a_program_is_recorded_as_it_runs(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(PROGRAM)
    program = [sys.executable, "serve.py", "--port", "80"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "autocompile",
            "record",
            "-o",
            "calls.json",
            "--",
            *program,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stdout) == (0, "['--port', '80']\n"), done.stderr
    calls = read_calls(tmp_path / "calls.json")
    assert (calls.model, calls.order) == ("Net", (0, 1, 0))
    assert "3 calls of Net" in done.stderr
    assert "ReLU (1)" in done.stderr


SERVER = """
import os, signal, sys, time, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x)
net = Net()
if "--handler" in sys.argv:  # as servers do: shut down, then die of the signal
    def stop(number, frame):
        time.sleep(0.5)
        net(torch.randn(7, 4))
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
for rows in (3, 5, 3):
    net(torch.randn(rows, 4))
    torch.nn.CrossEntropyLoss()(torch.randn(2, 3), torch.tensor([0, 1]))
print("serving", flush=True)
while True:
    time.sleep(0.05)
"""


def _hears_signals() -> None:
    """A suite in the background of a shell would hand ignored signals down."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _server(folder: Path, *more: str) -> subprocess.Popen[str]:
    (folder / "python_serve.py").write_text(SERVER)
    command = [sys.executable, "-m", "autocompile", "record", "-o", "calls.json", "--"]
    command += [sys.executable, "-u", "-X", "dev", "python_serve.py", *more]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command,
        cwd=folder,
        text=True,
        env=environment,
        start_new_session=True,
        preexec_fn=_hears_signals,
        **pipes,
    )
    assert process.stdout
    assert process.stdout.readline() == "serving\n"
    return process


@pytest.mark.parametrize(
    ("number", "more", "calls"),
    [
        (signal.SIGTERM, (), 3),
        (signal.SIGTERM, ("--handler",), 4),
        (signal.SIGINT, ("--handler",), 4),
        (signal.SIGHUP, (), 3),
    ],
)
def test_a_server_that_is_stopped_has_its_calls_written(
    tmp_path: Path, number: int, more: tuple[str, ...], calls: int
) -> None:
    server = _server(tmp_path, *more)
    server.send_signal(number)  # to the command alone, as by kill or timeout
    _, errors = server.communicate(timeout=60)
    assert server.returncode == 128 + number, errors
    assert len(read_calls(tmp_path / "calls.json").order) == calls
    assert "CrossEntropyLoss (3)" in errors


def test_ctrl_c_twice_ends_the_program_once(tmp_path: Path) -> None:
    """In a terminal both processes get the signal; the program's own handler ends it."""
    server = _server(tmp_path, "--handler")
    os.killpg(server.pid, signal.SIGINT)
    time.sleep(0.1)
    os.killpg(server.pid, signal.SIGINT)
    server.communicate(timeout=60)
    assert len(read_calls(tmp_path / "calls.json").order) >= 3
    assert_nothing_left(str(tmp_path))


def test_a_killed_program_has_its_calls_written(tmp_path: Path) -> None:
    server = _server(tmp_path)
    program = psutil.Process(server.pid).children()[0]
    program.kill()
    server.communicate(timeout=60)
    assert server.returncode == 128 + signal.SIGKILL
    assert len(read_calls(tmp_path / "calls.json").order) == 3


def test_without_a_call_the_command_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("print('nothing')")
    command = [sys.executable, "-m", "autocompile", "record", "--", sys.executable]
    done = subprocess.run(
        [*command, "empty.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2
    assert "no call of an nn.Module was seen in empty.py" in done.stderr


def test_modules_that_are_dropped_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(
        "import gc, torch, weakref\n"
        "seen = []\n"
        "for _ in range(3):\n"
        "    net = torch.nn.Linear(4, 4)\n"
        "    net(torch.ones(1, 4))\n"
        "    seen.append(weakref.ref(net))\n"
        "del net\n"
        "gc.collect()\n"
        "print(sum(each() is not None for each in seen))\n"
    )
    command = [sys.executable, "-m", "autocompile", "record", "--", "many.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_what_a_damaged_journal_has_is_read(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    journal = Journal(path)
    for call in ("[1]", "[2]", "[1]"):
        journal.add("net", "Net", True, f'{{"args": {call}, "kwargs": {{}}}}', 0.5)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1] + lines[2] + lines[0][:20])
    (one,) = called_modules(path)
    assert (one.order, one.seconds) == ([0, 1, 0], 1.5)
    path.write_text(lines[1] + lines[2])  # the first was not written
    (one,) = called_modules(path)
    assert one.calls().order == (0,)
    path.write_text("")
    assert called_modules(path) == []


OF_ITS_OWN = """
import os, threading, torch
net = torch.nn.Linear(4, 4)
net(torch.ones(2, 4))
os.closerange(3, 64)  # as daemons do
with open("own", "w") as file:
    for _ in range(3):
        file.write("a line of its own\\n")
        file.flush()
        net(torch.ones(2, 4))
identity = torch.nn.Identity()
jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
unsigned = torch.ones(2, dtype=torch.uint16)
for odd in (unsigned, torch.eye(2).long().to_sparse(), jagged):
    identity(odd)
"""


def test_a_program_that_closes_files_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OF_ITS_OWN)
    command = [sys.executable, "-m", "autocompile", "record", "--", "own.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own").read_text() == "a line of its own\n" * 3
    assert len(read_calls(tmp_path / "calls.json").order) == 4, done.stderr
