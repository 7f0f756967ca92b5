"""Every timed side makes the same calls: at other precisions, of own steps and of workloads."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import Try, timed_for_a_moment

from autocompile.settings.config import CompileConfig
from autocompile.store.record import Measurement
from autocompile.trial.measure.timing import Rounds, Timed, Timer, screen
from autocompile.trial.tasks import session

NET = """
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
    def forward(self, x):
        return self.layer(x).relu()

def get_model(): return Net()
def get_inputs(): return torch.randn(16, WIDTH)

def called():
    sys.modules["test_session"].CALLED.append(1)
"""
# Each of them is a step whose gradients do not tell what its optimizer did, so that it is compared
# over several calls; it is timed over one.
CLEARS_LAST = """
def get_step(model, optimizer):
    def step(x):
        called()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return step
"""
ACCUMULATES = """
def get_step(model, optimizer):
    calls = 0
    def step(x):
        nonlocal calls
        called()
        calls += 1
        loss = model(x).square().mean()
        loss.backward()
        if calls % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()
    return step
"""
WORKLOAD = """
def get_calls():
    for rows in (3, 5, 3, 9, 4, 3):
        yield torch.randn(rows, WIDTH)
"""
CALLED: list[int] = []


@pytest.fixture
def write(work: Path) -> Any:
    def write_(more: str, width: int = 8) -> None:
        text = (NET + more).replace("WIDTH", str(width))
        (work / "model.py").write_text(text)

    return write_


def setting(backend: str, **more: Any) -> dict[str, Any]:
    return {"config": CompileConfig(backend, **more).to_dict(), "batch_size": None}


@pytest.mark.parametrize("step", [CLEARS_LAST, ACCUMULATES])
@pytest.mark.parametrize("more", [{"autocast": "bfloat16"}, {"precision": "high"}, {}])
def test_a_step_is_timed_over_one_call_on_both_sides_at_every_precision(
    write: Any,
    try_it: Try,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    more: dict[str, str],
) -> None:
    counts: list[int] = []

    def counted(eager: Timed, other: Timed, *args: Any) -> Any:
        for side in (eager, other):
            before = len(CALLED)
            with side.context():
                side.call()
            counts.append(len(CALLED) - before)
        return timed_for_a_moment(eager, other, *args)

    monkeypatch.setattr(session, "screen", counted)
    write(step)
    result = try_it("model.py", "step", **setting("aot_eager", **more))
    assert result["outcome"] == "ok", result["message"]
    assert counts == [1, 1]


@pytest.mark.parametrize("phase", ["forward", "train_step"])
@pytest.mark.parametrize("more", [{"autocast": "bfloat16"}, {"precision": "high"}])
def test_a_workload_is_timed_call_by_call_at_every_precision(
    write: Any, try_it: Try, phase: str, more: dict[str, str]
) -> None:
    write(WORKLOAD)
    result = try_it("model.py", phase, **setting("aot_eager", **more))
    assert result["outcome"] == "ok", result["message"]
    kinds = [(kind["shape"], kind["calls"]) for kind in result["kinds"]]
    assert kinds == [("3×8", 3), ("5×8", 1), ("9×8", 1), ("4×8", 1)]
    assert all(kind["eager_s"] > 0 and kind["call_s"] > 0 for kind in result["kinds"])


def test_sides_that_make_different_numbers_of_calls_are_not_timed() -> None:
    def nothing() -> None:
        """A call."""

    one = Timed(nothing, nothing, contextlib.nullcontext)
    two = Timed(nothing, nothing, contextlib.nullcontext, calls=2)
    with pytest.raises(ValueError, match=r"make \[1, 2\] calls at once"):
        Rounds([one, two], Timer(), 0.01, 0)


@pytest.mark.slow
@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
def test_a_steps_figures_are_those_of_a_long_loop(
    write: Any, try_it: Try, monkeypatch: pytest.MonkeyPatch, autocast: str
) -> None:
    """Eager's is that of a loop without autocast, whatever the precision of the setting."""
    monkeypatch.setattr(session, "screen", screen)
    write(CLEARS_LAST, width=384)
    limits = {"half_width": 0.02, "max_s": 3.0, "front_s": 3.0, "block_s": 0.02}
    config = setting("aot_eager", autocast=autocast)
    result = try_it("model.py", "step", limits=limits, **config)
    assert result["outcome"] == "ok", result["message"]
    found = Measurement.from_dict(result["measurement"])
    assert found.eager_call_s == pytest.approx(seconds_of_a_loop(), rel=0.25)


def seconds_of_a_loop() -> float:
    """A call of the step in eager mode, in a loop of many, by the clock of this test."""
    model = torch.nn.Sequential(torch.nn.Linear(384, 384), torch.nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())
    x, times = torch.randn(16, 384), list[float]()
    for _ in range(300):
        began = time.perf_counter()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return statistics.median(times[50:])


CHANGES = """
import torch

class Net(torch.nn.Module):
    def forward(self, x, cache):
        CHANGE
        return x.sum()

def get_model(): return Net()
def get_inputs(): return torch.rand(4, 4) + 1, torch.zeros(4)
"""


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("x.div_(255)", "[0]"),
        ("cache.copy_(x.sum(0))", "[1]"),
        ("cache = x + cache", ""),
        ("cache.add_(torch.nan)", ""),
    ],
)
def test_inputs_that_calls_change_are_named(
    work: Path, try_it: Try, change: str, path: str
) -> None:
    (work / "model.py").write_text(CHANGES.replace("CHANGE", change))
    result = try_it("model.py", **setting("aot_eager"))
    assert result["outcome"] == "ok", result["message"]
    said = [note for note in result["notes"] if "changes its inputs in place" in note]
    assert [f"({path})" in note for note in said] == [True] * bool(path)


QUEUE = """
from collections import deque
import torch

class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.queue = torch.nn.Linear(8, 64), deque()
    def forward(self, x):
        if not self.queue:
            self.queue.extend(self.net(x).chunk(8, dim=-1))
        return self.queue.popleft()

def get_model(): return Policy()
def get_inputs(): return torch.randn(4, 8)
"""


def test_where_nothing_can_be_compared_eager_itself_says_so(
    work: Path, try_it: Try
) -> None:
    """So that no other trial begins, of which each would be refused."""
    (work / "model.py").write_text(QUEUE)
    result = try_it("model.py", **setting("eager"))
    assert result["outcome"] == "wrong_output"
    assert "nothing can be compared with it" in result["message"]
    assert "each call changes Policy.queue, a deque" in result["message"]


def test_eager_mode_does_not_slow_itself_down(
    write: Any, try_it: Try, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By chance its blocks beside itself may take longer than alone."""

    def slowed(*args: Any) -> Any:
        found, _ = timed_for_a_moment(*args)
        note = "eager runs 449% slower next to this setting than alone"
        return dataclasses.replace(found, flags=("eager_slowed",)), [note]

    monkeypatch.setattr(session, "screen", slowed)
    write("def get_inputs(): return torch.randn(4, WIDTH)")
    for backend, is_said in (("eager", False), ("aot_eager", True)):
        result = try_it("model.py", **setting(backend))
        assert result["outcome"] == "ok", result["message"]
        assert any("slower next to" in note for note in result["notes"]) is is_said
        assert bool(result["measurement"].get("flags")) is is_said
