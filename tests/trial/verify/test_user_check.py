"""The user's own check() and tolerance, through the real worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import Try

from autocompile.trial.verify.compare import compare
from autocompile.trial.verify.outputs import refusal

HEAD = """
import dataclasses, itertools, torch
from torch._dynamo import register_backend

torch.set_num_threads(1)

@dataclasses.dataclass(frozen=True)
class Answer:
    logits: torch.Tensor
    name: str = "answer"

class Model(torch.nn.Linear):
    def forward(self, x):
        return Answer(super().forward(x))

def get_model():
    return Model(16, 4)

def get_inputs(batch_size):
    return (torch.randn(batch_size, 16),)

def scaled(name, factor):
    def backend(graph, inputs):
        return lambda *args: tuple(out * factor for out in graph(*args))
    register_backend(backend, name=name)

scaled("off_by_3_percent", 1.03)
scaled("negates", -1.0)

@register_backend
def bakes(graph, inputs):
    kept = [x.detach().clone() if isinstance(x, torch.nn.Parameter) else None for x in inputs]
    return lambda *args: graph(*(a if k is None else k for a, k in zip(args, kept)))
"""
LOOSE = """
def check(expected, actual):
    assert type(expected) is type(actual) is Answer and actual.name == "answer"
    assert not expected.logits.requires_grad
    error = (expected.logits - actual.logits).norm() / expected.logits.norm()
    assert error < 0.1, f"relative error {error:.2f} is\\ntoo much"
"""
NOISY = """
CALLS = itertools.count()

@torch.compiler.disable
def noise():
    return 4.0 ** (next(CALLS) % 4)

class Noisy(torch.nn.Linear):
    def forward(self, x):
        output = super().forward(x)
        return output * 0 + noise(), output

def get_model():
    return Noisy(16, 4)
"""


_NUMBERS = itertools.count()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*parts: str) -> Path:
        # Dynamo keeps a module by its name for as long as the process lives.
        path = tmp_path / f"compared_{next(_NUMBERS)}.py"
        path.write_text("\n".join((HEAD, *parts)))
        return path

    return write


def outcome(result: dict[str, Any]) -> tuple[str, str]:
    return result["outcome"], result.get("message", "")


def test_a_check_decides_about_outputs(try_it: Try, write: Callable[..., Path]) -> None:
    plain = write()
    assert outcome(try_it(plain, backend="off_by_3_percent"))[0] == "wrong_output"
    loose = write(LOOSE)
    accepted = try_it(loose, backend="off_by_3_percent")
    assert outcome(accepted)[0] == "ok"
    assert accepted["weights_live"] is True
    assert "outputs are compared by the target's check()" in accepted["notes"]
    for spec in (write(LOOSE), f"{write(LOOSE)}:get_model"):
        assert outcome(try_it(spec, backend="negates")) == (
            "wrong_output",
            "check() rejects: relative error 2.00 is too much (call 1)",
        )


def test_stale_weights_and_gradients_are_not_left_to_a_check(
    try_it: Try, write: Any
) -> None:
    blind = write("def check(expected, actual):\n    return True\n")
    assert outcome(try_it(blind, backend="bakes"))[0] == "stale_weights"
    kind, words = outcome(try_it(blind, "train_step", "negates"))
    assert kind == "wrong_output" and "is off by 2" in words


def test_a_check_may_accept_what_no_seed_decides(
    try_it: Try, write: Callable[..., Path]
) -> None:
    assert "differs from itself" in try_it(write(NOISY))["message"]
    second = (
        "def check(expected, actual):\n    return torch.equal(expected[1], actual[1])\n"
    )
    assert try_it(write(NOISY, second))["outcome"] == "ok"


def test_a_check_that_refuses_eager_itself_is_the_targets_fault(
    try_it: Try, write: Any
) -> None:
    strict = write(NOISY, "def check(a, b):\n    assert torch.equal(a[0], b[0])\n")
    result = try_it(strict)
    assert (result["outcome"], result["step"]) == ("runtime_error", "eager")
    assert (
        result["message"] == "the target's check() rejects a second run of eager mode"
    )
    assert "assert torch.equal(a[0], b[0])" in result["explained"]["details"][0]


def test_a_check_that_takes_other_arguments_is_said(try_it: Try, write: Any) -> None:
    other = "def check():\n    return True\n"
    assert (
        "cannot be called as check(expected, actual)" in try_it(write(other))["message"]
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, None),
        (True, None),
        (torch.tensor(True), None),
        (False, "it returned False"),
        (torch.tensor([False]), "it returned False"),
        (0.0, "returned a float instead of True, False or None"),
        (torch.tensor([True, True]), "returned a Tensor instead of"),
    ],
)
def test_the_answer_of_a_check_is_true_false_or_none(
    answer: Any, words: str | None
) -> None:
    said = refusal(lambda expected, actual: answer, 1, 2)
    assert said is None if words is None else words in str(said)


def test_any_error_of_a_check_refuses_and_it_cannot_change_what_is_compared() -> None:
    expected = {"a": torch.ones(2)}

    def check(expected: Any, actual: Any) -> None:
        expected["a"].zero_()
        del expected["a"]
        raise KeyError("b")

    assert refusal(check, expected, {}) == "check() rejects: KeyError: 'b'"
    assert torch.equal(expected["a"], torch.ones(2))


def test_a_tolerance_replaces_the_one_of_the_dtype(
    try_it: Try, write: Callable[..., Path]
) -> None:
    model = write()
    result = try_it(model, backend="off_by_3_percent", tolerance=0.1)
    assert result["outcome"] == "ok" and result["weights_live"] is True
    assert any("0.1" in note for note in result["notes"])
    assert (
        try_it(model, backend="off_by_3_percent", tolerance=0.01)["outcome"]
        == "wrong_output"
    )
    assert try_it(model, backend="negates", tolerance=0.9)["outcome"] == "wrong_output"
    assert try_it(model, backend="bakes", tolerance=0.9)["outcome"] == "stale_weights"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tolerance_also_narrows(dtype: torch.dtype) -> None:
    exact = torch.linspace(1, 2, 64)
    near = {"outputs": (exact * (1 + 5e-5)).to(dtype)}
    expected = {"outputs": exact.to(dtype)}
    assert compare(expected, near) is None
    if dtype is torch.float32:
        assert compare(expected, near, tolerance=1e-6) is not None
    assert compare(expected, expected, tolerance=1e-9) is None


def test_the_other_parts_keep_at_least_their_tolerance() -> None:
    exact = torch.linspace(1, 2, 64)
    for part, error in (("loss", 5e-5), ("gradients", 5e-5)):
        pair = ({part: {"w": x}} for x in (exact, exact * (1 + error)))
        assert compare(*pair, tolerance=1e-9) is None
    still = {"gradients": {"w": torch.zeros(64)}}
    assert compare({"gradients": {"w": exact}}, still, tolerance=0.9) is not None


def test_the_template_works_with_its_optional_function(
    try_it: Try, tmp_path: Path
) -> None:
    from autocompile.cli.checking import TEMPLATE

    path = tmp_path / "model.py"
    path.write_text(TEMPLATE.replace("# def ", "def ").replace("#     ", "    "))
    result = try_it(path, phase="optimizer_step")
    assert result["outcome"] == "ok", result
