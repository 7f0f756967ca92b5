"""What a model is called with is noted, and nothing of what tensors hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autocompile.errors import UsageError
from autocompile.runtime.recording import record
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


@pytest.mark.parametrize("compiled", ["wrapped", "in place"])
def test_a_compiled_model_is_recorded(tmp_path: Path, compiled: str) -> None:
    net: Any = torch.nn.Linear(4, 4)
    if compiled == "wrapped":
        net = torch.compile(net, backend="eager")
    else:
        net.compile(backend="eager")
    with record(net, tmp_path / "calls.json"):
        net(torch.ones(2, 4))
        net(torch.ones(3, 4))
    calls = read_calls(tmp_path / "calls.json")
    assert (calls.model, calls.order) == ("Linear", (0, 1))


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
