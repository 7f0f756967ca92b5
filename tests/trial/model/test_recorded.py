"""Inputs from a file of calls: their shapes, and the form that a user's own functions get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import Try

import autocompile
from autocompile.errors import TargetError
from autocompile.settings.config import CompileConfig
from autocompile.store.recorded_calls import RecordedCalls
from autocompile.trial.model.calls import Arguments
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.recorded import from_file, in_form

X, MASK = torch.ones(4, 8), torch.zeros(4)


def forward(x: Any, mask: Any = None, *, scale: float = 1.0) -> Any:
    return x


def test_a_file_gives_its_shapes_and_integers_within_what_was_seen() -> None:
    ids = {"tensor": {"shape": [64, 3], "dtype": "int32", "low": 4, "high": 6}}
    x = {"tensor": {"shape": [2], "dtype": "bfloat16"}}
    call = {"args": [ids, {"tuple": [x, 3]}], "kwargs": {}}
    (made,) = from_file(RecordedCalls("Net", (call,), (0,)), forward)
    assert made[0].shape == (64, 3)
    assert made[0].dtype == torch.int32
    assert set(made[0].unique().tolist()) == {4, 5, 6}
    assert made[1][0].dtype == torch.bfloat16
    assert made[1][1] == 3


@pytest.mark.parametrize(
    "value", [{"object": "Cache"}, {"tensor": {"shape": [1], "dtype": "nn"}}]
)
def test_what_a_file_cannot_hold_is_one_paragraph(value: Any) -> None:
    call = {"args": [value], "kwargs": {}}
    with pytest.raises(TargetError, match="the file of calls"):
        from_file(RecordedCalls("Net", (call,), (0,)), forward)


@pytest.mark.parametrize(
    ("args", "named", "like", "expected"),
    [
        # The target has no inputs of its own: as the call was made.
        ((X,), {}, None, X),
        ((X, MASK), {}, None, (X, MASK)),
        ((), {"x": X}, None, {"x": X}),
        ((X,), {"mask": MASK}, None, Arguments(((X,), {"mask": MASK}))),
        # It gives a tensor.
        ((X,), {}, X, X),
        ((), {"x": X}, X, X),
        # It gives a tuple or a list.
        ((X,), {}, (X,), (X,)),
        ((X,), {"mask": MASK}, [X, MASK], (X, MASK)),
        ((), {"mask": MASK, "x": X}, (X, MASK), (X, MASK)),
        ((X,), {"scale": 2.0}, (X,), Arguments(((X,), {"scale": 2.0}))),
        # It gives a dict.
        ((X,), {}, {"x": X}, {"x": X}),
        ((X, MASK), {"scale": 2.0}, {"x": X}, {"x": X, "mask": MASK, "scale": 2.0}),
        # An argument that is a collection is not taken apart.
        (((X, MASK),), {}, X, ((X, MASK),)),
        (({"x": X},), {}, None, ({"x": X},)),
        # The signature does not allow it.
        ((X, MASK, 3), {}, {"x": X}, (X, MASK, 3)),
        ((X,), {"other": 1}, (X,), Arguments(((X,), {"other": 1}))),
    ],
)
def test_a_call_has_the_form_of_the_inputs_that_the_target_gives(
    args: Any, named: Any, like: Any, expected: Any
) -> None:
    made = in_form(args, named, forward, like)
    assert type(made) is type(expected)
    assert str(made) == str(expected)


NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x).relu()

def get_model(): return Net()
"""
STEP = """
def get_step(model):
    def step(inputs):
        x = X
        assert isinstance(x, torch.Tensor) and x.shape[1] == 8, x
        return model(x)
    return step
"""
LOSS = """
def get_loss(output, inputs):
    x = X
    return (output - x).square().mean()
"""
INPUTS = "def get_inputs(n): return "
CALLS = "def get_calls():\n    for n in (3, 5): yield "


def recorded(by_name: bool) -> Any:
    """The file of two calls of the model, as a request holds it."""
    names: dict[str, Any] = {}
    exec(NET, names)
    model = names["get_model"]()
    with autocompile.record(model, "calls.json"):
        for rows in (2, 4):
            x = torch.randn(rows, 8)
            model(x=x) if by_name else model(x)
    return json.loads(Path("calls.json").read_text())


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    ("inputs", "x"),
    [
        (INPUTS + "torch.randn(n, 8)", "inputs"),
        (INPUTS + "(torch.randn(n, 8),)", "inputs[0]"),
        (INPUTS + "{'x': torch.randn(n, 8)}", "inputs['x']"),
        (CALLS + "{'x': torch.randn(n, 8)}", "inputs['x']"),
    ],
)
def test_a_step_and_a_loss_get_recorded_calls_as_the_targets_own_inputs(
    work: Path, try_it: Try, inputs: str, x: str, by_name: bool
) -> None:
    (work / "model.py").write_text(NET + inputs + (STEP + LOSS).replace("X", x))
    usual = {"config": CompileConfig("aot_eager").to_dict(), "batch_size": None}
    for phase in ("inference_step", "train_step"):
        result = try_it("model.py", phase, **usual, calls=recorded(by_name))
        assert result["outcome"] == "ok", result["message"]
        assert [kind["shape"] for kind in result["kinds"]] == ["2×8", "4×8"]


def test_a_step_of_a_target_without_inputs_gets_the_only_argument_itself(
    work: Path, try_it: Try
) -> None:
    (work / "model.py").write_text(NET + STEP.replace("X", "inputs"))
    config = CompileConfig("aot_eager").to_dict()
    result = try_it(
        "model.py",
        "inference_step",
        config=config,
        batch_size=None,
        calls=recorded(by_name=False),
    )
    assert result["outcome"] == "ok", result["message"]


FAILS = """
def get_inputs(n):
    open("called", "w").close()
    raise FileNotFoundError("no data set here")
"""


def test_inputs_of_the_target_that_nobody_needs_are_not_made_where_calls_are_given(
    work: Path, try_it: Try
) -> None:
    (work / "model.py").write_text(NET + FAILS)
    usual = {"config": CompileConfig("aot_eager").to_dict(), "batch_size": None}
    result = try_it("model.py", "forward", **usual, calls=recorded(by_name=False))
    assert result["outcome"] == "ok", result["message"]
    assert not (work / "called").exists()


def test_where_the_targets_inputs_fail_a_step_gets_calls_as_recorded_and_this_is_said(
    work: Path, try_it: Try
) -> None:
    (work / "model.py").write_text(NET + FAILS + STEP.replace("X", "inputs['x']"))
    calls = recorded(by_name=True)
    usual = {"config": CompileConfig("aot_eager").to_dict(), "batch_size": None}
    result = try_it("model.py", "inference_step", **usual, calls=calls)
    assert result["outcome"] == "ok", result["message"]
    assert (work / "called").exists()
    target = build(
        "model.py", import_target("model.py"), RecordedCalls.from_dict(calls)
    )
    assert target.choices["inputs"] == (
        "the file of calls, in the form in which they were recorded, since get_inputs() of "
        "the target fails: FileNotFoundError: no data set here"
    )
