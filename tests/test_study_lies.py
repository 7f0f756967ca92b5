"""The lies of studies/verification are lies, each of them, and its control is none."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import ROOT

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")


@pytest.fixture
def lies(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "studies" / "verification"))
    yield importlib.import_module("lies")
    for name in ("lies", "catalogue"):
        sys.modules.pop(name, None)


def told_by(target: str, lies: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backends of a target, each with a model and inputs of two calls, all alike.

    Of the errors of several sizes the smallest.
    """
    monkeypatch.setenv("VERIFICATION_TARGET", target)
    torch.manual_seed(0)
    model, calls = lies.get_model(), [lies.get_inputs() for _ in range(2)]
    each = lies.LIARS[target.removesuffix("_bfloat16")]
    smallest = [f"{kind}_{lies.SIZES[0]:g}" for kind in each.scans]
    for name in (lies.CONTROL, *each.lies, *smallest):
        torch._dynamo.reset()
        yield name, copy.deepcopy(model), copy.deepcopy(calls)


def of_forward(model: Any, run: Any, calls: Any) -> list[Any]:
    """What a caller can see after two calls: results with their strides, and the inputs."""
    with torch.no_grad():
        results = [run(**inputs) for inputs in calls]
    inside = [{k: getattr(x, "keys", x) for k, x in inputs.items()} for inputs in calls]
    leaves = torch.utils._pytree.tree_leaves([results, inside])
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    return [*tensors, *(torch.tensor(x.stride()) for x in tensors)]


def of_training(model: Any, run: Any, calls: Any) -> list[Any]:
    """The gradients of the second of two calls; an empty tensor where there is none."""
    for inputs in calls:
        model.zero_grad()
        torch.manual_seed(0)
        logits = run(**inputs)
        torch.nn.functional.cross_entropy(logits, inputs["labels"]).backward()
    return [torch.empty(0) if p.grad is None else p.grad for p in model.parameters()]


def is_same(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("target", "seen"),
    [("answers", of_forward), ("cache", of_forward), ("training", of_training)],
)
def test_each_lie_changes_what_a_caller_sees(
    target: str, seen: Any, lies: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, model, calls in told_by(target, lies, monkeypatch):
        eager = copy.deepcopy(model)
        want = seen(eager, eager, copy.deepcopy(calls))
        got = seen(model, torch.compile(model, backend=name), calls)
        assert is_same(want, got) is (name == lies.CONTROL), name


@pytest.mark.parametrize("target", ["stepping", "stepping_bfloat16"])
def test_each_lie_about_an_optimizer_changes_the_parameters(
    target: str, lies: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: list[Any] = []  # the control, which comes first
    for name, model, _ in told_by(target, lies, monkeypatch):
        torch.manual_seed(0)
        for p in model.parameters():
            p.grad = 1e-2 * torch.randn_like(p)
        step = torch.compile(lies.get_optimizer(model).step, backend=name)
        step()
        step()
        right = right or [*model.parameters()]
        assert is_same(right, [*model.parameters()]) is (name == lies.CONTROL), name
