"""Every optimizer that torch compiles, a step of one's own, and changes of the learning rate."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from in_process import timed_for_a_moment
from test_side_checks import a_target, batch, called, judged
from test_worker import a_trial, in_this_process
from torch import nn, optim

from autocompile.settings.config import EAGER, CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial.failures import Failed
from autocompile.trial.measure import telemetry
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.tasks import session
from autocompile.trial.verify.reference import Reference
from autocompile.trial.verify.side_checks import first_calls, schedule

Make = Callable[[Any], optim.Optimizer]
pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")

# What torch itself leaves in eager: LBFGS and SparseAdam by decree (and the one wants a closure,
# the other sparse gradients); of Adafactor and of fused steps Dynamo captures nothing.
NEVER_COMPILED = {"LBFGS", "SparseAdam", "Adafactor"}
OPTIMIZERS: dict[str, Make] = {
    name: cls
    for name, cls in vars(optim).items()
    if inspect.isclass(cls)
    and issubclass(cls, optim.Optimizer)
    and cls is not optim.Optimizer
    and name not in NEVER_COMPILED
}
VARIANTS: dict[str, Make] = {
    "momentum": partial(optim.SGD, momentum=0.9),
    "nesterov": partial(optim.SGD, momentum=0.9, nesterov=True),
    "centered": partial(optim.RMSprop, centered=True, momentum=0.9),
    "amsgrad": partial(optim.Adam, amsgrad=True),
    "foreach": partial(optim.Adam, foreach=True),
    "averaging": partial(optim.ASGD, t0=1.0),
    "decoupled": partial(optim.NAdam, weight_decay=1e-2, decoupled_weight_decay=True),
}
ALL = OPTIMIZERS | VARIANTS
assert len(OPTIMIZERS) >= 11


def matrices() -> nn.Module:
    """Muon takes nothing else."""
    return nn.Sequential(
        nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False)
    )


def stepping(make: Make) -> Target:
    return a_target(
        matrices, batch(4, 8), make_optimizer=lambda m: make(m.parameters())
    )


@pytest.mark.parametrize("name", ALL)
def test_a_compiled_step_agrees_with_eager(name: str) -> None:
    verdict = judged(stepping(ALL[name]), "optimizer_step")
    assert verdict.graphs >= 1
    assert verdict.notes == []


@pytest.mark.skipif("Muon" not in ALL, reason="torch 2.8 has none")
def test_inductors_step_agrees_with_eager() -> None:
    """Of Muon's rounding in bfloat16 only a float64 run can tell that it is none of a mistake."""
    assert judged(stepping(ALL["Muon"]), "optimizer_step", "inductor").graphs >= 1


class Counts(optim.Optimizer):
    """Counts its steps in plain numbers, as optimizers outside torch do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                p.sub_(p.grad * (group["lr"] / (state["step"] + group["k"])))


def whole_state(side: Side) -> list[Any]:
    state = side.optimizers[0].state_dict()
    leaves = torch.utils._pytree.tree_leaves(
        (state, dict(side.model.named_parameters()))
    )
    return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in leaves]


@pytest.mark.parametrize("name", [*ALL, "Counts"])
def test_everything_that_a_step_changes_is_put_back(name: str) -> None:
    make = ALL.get(name, Counts)
    side, other = (make_side(stepping(make), "optimizer_step", None) for _ in range(2))
    for each in (side, other):
        each.run()
    side.keep()
    kept = whole_state(side)
    for each in (side, other):
        for _ in range(3):
            each.run()
    moved = whole_state(side)
    assert any(not _same(a, b) for a, b in zip(kept, moved, strict=True))
    side.restore()
    other.adopt(side)
    for each in (side, other):
        assert all(_same(a, b) for a, b in zip(kept, whole_state(each), strict=True))


def _same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


# --- changes of the learning rate -----------------------------------------------------------------


def scheduled(
    make: Make,
    phase: str = "optimizer_step",
    lie: Callable[[Side], None] = lambda side: None,
) -> list[str]:
    """What a trial says of a schedule."""
    target = stepping(make)
    seed_everything(0)
    draws = [
        None if phase == "optimizer_step" else target.make_inputs(4) for _ in range(2)
    ]
    reference = Reference(target, phase, (draws[0], draws[1]), 0, [])
    telemetry.reset_dynamo("aot_eager")
    compiled = make_side(target, phase, draws[0], CompileConfig("aot_eager"))
    subject = called(reference, compiled)
    first_calls(reference, subject)
    lie(compiled)
    reference.eager.restore()
    compiled.adopt(reference.eager)
    before = whole_state(reference.eager)
    subject.notes.clear()
    schedule(reference, subject)
    for side in (reference.eager, compiled):
        assert all(_same(a, b) for a, b in zip(before, whole_state(side), strict=True))
    return subject.notes


def test_a_schedule_recompiles_no_model_whose_optimizer_is_outside() -> None:
    assert scheduled(optim.Adam, "train_step") == []


@pytest.mark.parametrize("make", [optim.Adam, optim.SGD])
def test_a_number_recompiles_and_a_tensor_does_not(make: Any) -> None:
    assert scheduled(make) == [
        "a learning-rate schedule recompiles this step; pass the rate as a tensor, "
        f"e.g. {make.__name__}(params, lr=torch.tensor(0.001))"
    ]
    assert scheduled(lambda p: make(p, lr=torch.tensor(1e-3))) == []


def test_a_step_that_goes_on_with_the_old_learning_rate_is_refused() -> None:
    def forgets(side: Side) -> None:
        (group,), honest = side.optimizers[0].param_groups, side.call

        def call() -> Any:
            now, group["lr"] = group["lr"], 1e-3
            honest()
            group["lr"] = now

        side.call = call

    with pytest.raises(Failed, match="does not follow the learning rate") as caught:
        scheduled(optim.Adam, lie=forgets)
    assert caught.value.outcome is Outcome.WRONG_OUTPUT


def test_what_the_changes_compile_is_not_counted_for_the_trial(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "screen", timed_for_a_moment)
    request = a_trial(phase="optimizer_step", batch_size=None)
    result = in_this_process(work / "first", request, capsys)
    assert (result["graphs"], result["recompiles"]) == (1, 0)
    assert str(result["notes"]).count("schedule recompiles this step;") == 1
    eager = {"sides": [{"config": EAGER.to_dict()}]}
    for changes in ({"phase": "forward", "batch_size": 4}, eager):
        other = in_this_process(work / "other", {**request, **changes}, capsys)
        assert other["outcome"] == "ok", other
        assert "schedule" not in str(other["notes"])
