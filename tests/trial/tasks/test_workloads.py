"""Workloads in trials: calls of several shapes are compared, timed and told apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import Try

from autocompile.settings.config import CompileConfig

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x):
        y = self.layer(x).relu()
        return y + WRONG

def get_model(): return Net()
def get_calls():
    for rows in (3, 5, 3, 9):
        yield torch.randn(rows, 8)
"""


@pytest.fixture
def target(work: Path) -> Path:
    return write(work, "0")


def write(work: Path, wrong: str) -> Path:
    path = work / "model.py"
    path.write_text(MODEL.replace("WRONG", wrong))
    return path


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("phase", ["forward", "train_step"])
def test_a_workload_is_compared_and_timed(
    target: Path, try_it: Try, phase: str, dynamic: bool | None
) -> None:
    config = CompileConfig("aot_eager", dynamic=dynamic)
    result = try_it("model.py", phase, config=config.to_dict(), batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    kinds = [(kind["shape"], kind["calls"]) for kind in result["kinds"]]
    assert kinds == [("3×8", 2), ("5×8", 1), ("9×8", 1)]
    assert all(kind["eager_s"] > 0 and kind["call_s"] > 0 for kind in result["kinds"])
    assert result["graphs"] >= (1 if dynamic else 2)


LONG_S = 20.0
LATE_S = [0.0]  # how far the clocks have been moved on


def moved_on(clock: Callable[[], float], unit: float) -> Callable[[], float]:
    return lambda: clock() + type(clock())(LATE_S[0] * unit)


def test_a_long_call_is_no_compile_time(
    work: Path, try_it: Try, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the calls that are made while it compiles, the long ones are few in a pass.

    By clocks that a long call moves on, so that the seconds of compiling are few beside it.
    """
    path = write(work, "slow(x)")
    slow = """
import sys

@torch.compiler.disable
def slow(x):
    sys.modules["test_workloads"].LATE_S[0] += LONG if len(x) == 5 else 0
    return 0
"""
    path.write_text(path.read_text() + slow.replace("LONG", str(LONG_S)))
    for name, unit in (("monotonic", 1), ("perf_counter", 1), ("perf_counter_ns", 1e9)):
        monkeypatch.setattr(time, name, moved_on(getattr(time, name), unit))
    config = CompileConfig("aot_eager").to_dict()
    result = try_it("model.py", "train_step", config=config, batch_size=None)
    long = next(kind for kind in result["kinds"] if kind["shape"] == "5×8")
    assert long["call_s"] > LONG_S
    # One less a quarter of its pass, which has four calls, would be 0.75 of it.
    assert result["compile_s"] < 0.5 * LONG_S


def test_the_probe_says_what_differs(target: Path, try_it: Try) -> None:
    probed = try_it("model.py", kind="probe", phases=["forward"])["target"]
    assert probed["workload"] == {"calls": 4, "kinds": 3}
    assert probed["fixed_batch_size"] == 3 + 5 + 3 + 9


def test_a_setting_that_is_wrong_at_one_shape_is_found(work: Path, try_it: Try) -> None:
    write(work, "(0.1 if x.shape[0] == 5 and torch.compiler.is_compiling() else 0)")
    config = CompileConfig("aot_eager", dynamic=False)
    result = try_it("model.py", "forward", config=config.to_dict(), batch_size=None)
    assert result["outcome"] == "wrong_output"
    assert "[1]" in result["message"]


def test_a_setting_that_is_wrong_between_the_shapes_is_found(
    work: Path, try_it: Try
) -> None:
    write(
        work,
        "(0.1 if x.shape[0] in (4, 6, 7) and torch.compiler.is_compiling() else 0)",
    )
    config = CompileConfig("aot_eager")
    result = try_it("model.py", "forward", config=config.to_dict(), batch_size=None)
    assert result["outcome"] == "wrong_output"
    assert "between those of the calls" in result["message"]


def test_weights_that_are_constants_are_right_between_the_shapes_too(
    target: Path, try_it: Try
) -> None:
    config = CompileConfig(freezing=True)
    result = try_it("model.py", "forward", config=config.to_dict(), batch_size=None)
    assert result["outcome"] == "ok", result["message"]
    assert result["weights_live"] is True


@pytest.mark.parametrize("limit", [None, 16])
def test_more_shapes_than_torch_makes_programs_for(
    work: Path, try_it: Try, limit: int | None
) -> None:
    path = write(work, "0")
    path.write_text(path.read_text().replace("(3, 5, 3, 9)", "range(2, 14)"))
    config = CompileConfig("aot_eager", dynamic=False, recompile_limit=limit)
    result = try_it("model.py", "forward", config=config.to_dict(), batch_size=None)
    assert result["outcome"] == ("ok" if limit else "recompile_limit"), result[
        "message"
    ]


def test_shapes_that_a_second_call_changes_are_said(work: Path, try_it: Try) -> None:
    text = (
        "import random\nimport torch\ndef get_model(): return torch.nn.Linear(4, 4)\n"
    )
    text += "def get_inputs(): return torch.ones(random.randint(2, 90), 4)\n"
    (work / "model.py").write_text(text)
    choices = try_it("model.py", kind="probe", phases=["forward"])["target"]["choices"]
    assert "get_calls()" in choices["shapes"]


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ("return []", "yields nothing"),
        ("yield torch.ones(2, 8); raise ValueError('no more')", "fails at call 1"),
    ],
)
def test_calls_that_are_none_are_one_paragraph(
    work: Path, try_it: Try, calls: str, words: str
) -> None:
    path = write(work, "0")
    text = path.read_text().split("def get_calls")[0]
    path.write_text(f"{text}def get_calls():\n    {calls}\n")
    result: dict[str, Any] = try_it("model.py", kind="probe", phases=["forward"])
    assert words in result["message"]
    assert result["explained"]["what"] == result["message"]
