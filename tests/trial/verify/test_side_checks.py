"""Verifier: honest models pass in every phase, and each kind of liar fails with its outcome."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.backends.registry import register_backend

from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial.failures import Failed
from autocompile.trial.measure import telemetry
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.verify.reference import Reference, Subject
from autocompile.trial.verify.side_checks import (
    draws,
    first_calls,
    last_call,
    repeated_draws,
    weights,
)

Lie = Callable[[Side], None]
PHASES = ("forward", "optimizer_step", "train_step")
pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")


class Layer(nn.Module):
    """A linear layer, and what becomes of its output and input."""

    def __init__(
        self, then: Callable[[Any, Any], Any], inputs: int = 8, outputs: int = 4
    ) -> None:
        super().__init__()
        self.linear, self.then = nn.Linear(inputs, outputs), then

    def forward(self, x: torch.Tensor) -> Any:
        return self.then(self.linear(x), x)


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def batch(
    *shape: int, dtype: torch.dtype = torch.float32
) -> Callable[[], tuple[torch.Tensor]]:
    return lambda: (torch.randn(*shape).to(dtype),)


def a_target(
    make: Callable[[], nn.Module], inputs: Callable[[], Any], **changes: Any
) -> Target:
    seed_everything(0)
    made = Target("functions", make(), lambda _: inputs())
    return dataclasses.replace(made, **changes)


@dataclasses.dataclass
class Verdict:
    notes: list[str]
    live: bool | None
    graphs: int
    draws_otherwise: bool


def judged(
    target: Target,
    phase: str = "forward",
    config: CompileConfig | str = "aot_eager",
    lie: Lie | None = None,
    while_timed: Lie | None = None,
) -> Verdict:
    """What a trial does, but for the clock."""
    if isinstance(config, str):
        config = CompileConfig(backend=config)
    inputs: list[Any] = [None, None]
    if phase != "optimizer_step":
        for draw in (0, 1):
            seed_everything(1000 * (draw + 1))
            inputs[draw] = target.inputs(phase, 4)
    notes: list[str] = []
    reference = Reference(target, phase, (inputs[0], inputs[1]), 0, notes)
    reference.eager.run()  # as the memory measurement does
    telemetry.reset_dynamo(config.backend)
    compiled = make_side(target, phase, inputs[0], config)
    if lie is not None:
        lie(compiled)
    with reference.comparable_random_numbers(compiled):
        subject = called(reference, compiled, notes)
        first_calls(reference, subject)
        repeated_draws(reference, subject)
        compiled.keep()
        for side in (reference.eager, compiled, compiled, reference.eager):
            side.restore()
            side.run()
            side.run()
        if while_timed is not None:
            while_timed(compiled)
        last_call(reference, subject)
        draws(reference, subject)
        live = weights(reference, subject)
    graphs = telemetry.dynamo_facts()["graphs"]
    return Verdict(notes, live, graphs, subject.draws_otherwise)


def called(reference: Reference, side: Side, notes: list[str] | None = None) -> Subject:
    """A side that has made its first call."""
    return Subject(side, reference.call(side, 0), [] if notes is None else notes)


def refused(*args: Any, **kwargs: Any) -> tuple[Outcome, str]:
    with pytest.raises(Failed) as caught:
        judged(*args, **kwargs)
    return caught.value.outcome, str(caught.value)


# --- honest -------------------------------------------------------------------------------------


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 2)
    )


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 4))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that compiles in a moment."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


@pytest.mark.parametrize(
    ("phase", "dtype"),
    [
        *(("forward", dtype) for dtype in (torch.float16, torch.float64)),
        *(("optimizer_step", dtype) for dtype in (torch.float32, torch.bfloat16)),
        *(("train_step", dtype) for dtype in (torch.bfloat16, torch.float64)),
    ],
)
def test_an_honest_backend_passes_in_every_precision(
    phase: str, dtype: torch.dtype
) -> None:
    verdict = judged(a_target(lambda: mlp(dtype), batch(4, 8, dtype=dtype)), phase)
    assert verdict.graphs >= 1 and verdict.notes == []
    assert verdict.live is (True if phase == "forward" else None)


def test_a_distribution_alone_has_a_loss() -> None:
    def policy() -> nn.Module:
        return Layer(lambda y, x: torch.distributions.Categorical(logits=y))

    target = a_target(policy, batch(4, 8), make_optimizer=momentum)
    assert judged(target, "train_step").graphs >= 1


def test_inductor_passes_with_a_linear_bias_before_a_batch_norm() -> None:
    """That bias has a gradient of pure rounding noise, of which Adam makes steps of either sign."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)
        )

    assert judged(a_target(model, batch(16, 8)), "train_step", "inductor").graphs >= 1


def test_a_backend_that_rounds_better_than_eager_passes() -> None:
    """Differences that cancel in bfloat16: the plain tolerance refuses, float64 settles it."""

    def cancels() -> nn.Module:
        return Layer(
            lambda y, x: (y + 10) - (y + 10).mean(-1, keepdim=True), 32, 64
        ).bfloat16()

    @register_backend
    def wide(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            outputs = graph(
                *(a.float() if isinstance(a, torch.Tensor) else a for a in args)
            )
            return tuple(o.bfloat16() for o in outputs)

        return run

    target = a_target(cancels, batch(8, 32, dtype=torch.bfloat16))
    assert judged(target, "forward", "wide").live is True


def test_weights_whose_effect_is_not_visible_are_not_called_live() -> None:
    def hidden() -> nn.Module:
        return Layer(lambda y, x: x[:, :4] + 1e-6 * y)

    assert judged(a_target(hidden, batch(4, 8))).live is None


def test_random_numbers_are_said_and_compared() -> None:
    target = a_target(dropping, batch(4, 8), make_optimizer=momentum)
    verdict = judged(target, "train_step")
    assert any("draws random numbers" in note for note in verdict.notes)

    def other_numbers(side: Side) -> None:
        right = side.call
        side.call = lambda: (torch.manual_seed(99), right())[1]

    assert refused(target, "train_step", lie=other_numbers)[0] is Outcome.WRONG_OUTPUT


def test_a_forward_without_random_numbers_keeps_inductor_as_it_is() -> None:
    import torch._inductor.config

    target = a_target(dropping, batch(4, 8))
    seen = []
    for phase in ("forward", "train_step"):
        reference = Reference(
            target, phase, (target.make_inputs(4), target.make_inputs(4)), 0, []
        )
        for backend in ("aot_eager", "inductor"):
            side = make_side(target, phase, None, CompileConfig(backend=backend))
            with reference.comparable_random_numbers(side):
                seen.append(torch._inductor.config.fallback_random)
    assert seen == [False, False, True, False]


def test_the_users_model_is_left_as_it_was() -> None:
    target = a_target(normed, batch(4, 8), make_optimizer=momentum)
    before = copy.deepcopy(target.model.state_dict())
    for phase in PHASES:
        judged(target, phase)
    after = target.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for p in target.model.parameters())


_CALLS = itertools.count()


@torch.compiler.disable
def from_nowhere() -> torch.Tensor:
    """Numbers that no seed decides; of two runs of three calls no two are the same."""
    return torch.full((4,), 1 + next(_CALLS) % 5 / 250)


def unsteady() -> nn.Module:
    """One output that no two runs share, beside one that all do."""
    return Layer(lambda y, x: (from_nowhere(), y))


def wild() -> nn.Module:
    """Eager itself never gives the same twice."""
    return Layer(lambda y, x: y * (from_nowhere() - 1) * 50)


def test_nothing_is_compared_with_an_eager_that_differs_from_itself() -> None:
    target = a_target(wild, batch(4, 8))
    outcome, message = refused(target)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "eager differs from itself by" in message
    assert "so nothing can be compared with it" in message


def test_a_queue_that_calls_leave_in_the_model_is_named() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 16)
            self.queue: deque[torch.Tensor] = deque()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.queue:
                self.queue.extend(self.linear(x).chunk(2, dim=1))
            return self.queue.popleft()

    outcome, message = refused(a_target(Policy, batch(4, 8)))
    assert outcome is Outcome.WRONG_OUTPUT
    assert "each call changes Policy.queue, a deque, which nobody puts back" in message


def test_a_generator_of_the_models_own_begins_anew_with_the_state() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.generator = torch.Generator().manual_seed(7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noise = torch.randn(x.shape, generator=self.generator)
            return self.linear(x) + noise

    assert judged(a_target(Noisy, batch(4, 8)))
    first: list[torch.Tensor] = []

    def the_same_noise(output: torch.Tensor) -> torch.Tensor:
        first.append(output)
        return first[0]

    outcome, _ = refused(a_target(Noisy, batch(4, 8)), lie=changed(the_same_noise))
    assert outcome is Outcome.WRONG_OUTPUT


def test_an_output_without_a_tensor_is_refused() -> None:
    target = a_target(lambda: Layer(lambda y, x: x.shape[0]), batch(4, 8))
    outcome, message = refused(target)
    assert outcome is Outcome.WRONG_OUTPUT and "returns no tensor" in message


def test_noise_in_one_output_is_said_and_does_not_excuse_an_error_in_another() -> None:
    target = a_target(unsteady, batch(4, 8))
    assert any("eager differs from itself by" in note for note in judged(target).notes)
    lie = changed(lambda output: (output[0], output[1] * 1.2))
    assert refused(target, lie=lie)[0] is Outcome.WRONG_OUTPUT


# --- liars --------------------------------------------------------------------------------------


def changed(change: Callable[[Any], Any]) -> Lie:
    """A compiled side whose every answer is changed."""

    def lie(side: Side) -> None:
        right = side.call
        side.call = lambda: change(right())

    return lie


def scaled(factor: float) -> Lie:
    return changed(lambda output: output * factor)


def test_a_module_that_changes_its_input_is_fed_the_same_input_each_time() -> None:
    target = a_target(
        lambda: Layer(lambda output, x: (output, x.add_(1))[0]), batch(4, 8)
    )
    (note,) = judged(target).notes
    assert note.startswith("a call changes its inputs in place ([0])")
    assert refused(target, lie=scaled(1.01))[0] is Outcome.WRONG_OUTPUT


def test_answers_by_heart_for_each_input_are_stale_weights() -> None:
    def lie(side: Side) -> None:
        right, memory = side.call, {}

        def call() -> Any:
            key = side.inputs[0].sum().item()
            return memory.setdefault(key, None if key in memory else right())

        side.call = call

    outcome, message = refused(a_target(mlp, batch(4, 8)), lie=lie)
    assert outcome is Outcome.STALE_WEIGHTS
    assert message == "the output did not follow an in-place update of the weights"


def test_weights_that_miss_load_state_dict_are_stale() -> None:
    """It follows optimizers, but keeps what it has when a state dict is loaded."""

    def lie(side: Side) -> None:
        def load_state_dict(state: Any) -> None:
            """Not heard of."""

        side.model.load_state_dict = load_state_dict

    outcome, message = refused(a_target(mlp, batch(4, 8)), lie=lie)
    assert outcome is Outcome.STALE_WEIGHTS
    assert message == "the output did not follow load_state_dict"


def overwriting(side: Side) -> None:
    """Every answer is in the same memory."""
    right, buffers = side.call, {}

    def call() -> Any:
        output = right()
        if not isinstance(output, torch.Tensor):
            return output
        return buffers.setdefault(0, torch.empty_like(output)).copy_(output)

    side.call = call


def test_a_loss_that_the_next_call_overwrites_is_refused() -> None:
    """The user who keeps the answers of two calls has the second one twice."""
    outcome, message = refused(
        a_target(mlp, batch(4, 8)), "train_step", lie=overwriting
    )
    assert outcome is Outcome.WRONG_OUTPUT
    assert message.endswith("was overwritten by the next call (call 2)")


def test_what_cuda_graphs_overwrite_by_contract_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "autocompile.trial.verify.side_checks.uses_cuda_graphs", lambda _: True
    )
    notes = judged(a_target(mlp, batch(4, 8)), lie=overwriting).notes
    said = "outputs are overwritten by the next call (CUDA graphs): clone what you keep"
    assert notes == [said]


class Recurrent(nn.Module):
    """Its state is a tensor in a plain attribute, as people write it, or in an object of theirs."""

    def __init__(self, keep: Callable[[nn.Module, torch.Tensor], None]) -> None:
        super().__init__()
        self.linear, self.keep = nn.Linear(8, 8), keep
        self.state = torch.zeros(4, 8)
        self.parts = {"of a list": [torch.zeros(4, 8)]}
        self.view = self.linear.weight.detach().view(-1)  # of a parameter: no state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.state + self.parts["of a list"][0]
        y = torch.tanh(self.linear(x) + state)
        self.keep(self, y.detach())
        return y


def replaced(model: Any, y: torch.Tensor) -> None:
    model.state = 0.5 * model.state + y


def written(model: Any, y: torch.Tensor) -> None:
    model.parts["of a list"][0].mul_(0.5).add_(y)


@pytest.mark.parametrize("keep", [replaced, written])
@pytest.mark.parametrize("phase", ["forward", "train_step"])
def test_state_in_plain_attributes_is_put_back_before_a_call_is_compared(
    phase: str, keep: Any
) -> None:
    target = a_target(lambda: Recurrent(keep), batch(4, 8))
    assert judged(target, phase).live is (True if phase == "forward" else None)


def test_state_that_cannot_be_put_back_is_named_and_no_setting_is_blamed_for_it() -> (
    None
):
    class Cache:
        def __init__(self) -> None:
            self.state = torch.zeros(4, 8)

        def __deepcopy__(self, _: Any) -> Cache:
            return Cache()

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.cache = nn.Linear(8, 8), Cache()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) + self.cache.state
            self.cache.state = y.detach()
            return y

    outcome, message = refused(a_target(Hidden, batch(4, 8)))
    assert outcome is Outcome.WRONG_OUTPUT
    assert message.startswith("eager differs from itself by")
    assert "each call changes Hidden.cache, a Cache, which nobody puts back" in message


def test_a_liar_fails_with_an_outcome_where_float64_is_impossible() -> None:
    target = a_target(
        lambda: Layer(lambda y, x: y + torch.zeros(4, 4) @ y), batch(4, 8)
    )
    assert judged(target).live is True
    outcome, message = refused(target, lie=scaled(1.01))
    assert outcome is Outcome.WRONG_OUTPUT and "off by 0.01" in message


def keeping(tensors_of: Callable[[nn.Module], list[torch.Tensor]]) -> Lie:
    """A compiled side whose calls leave some tensors as they were."""

    def lie(side: Side) -> None:
        right, tensors = side.call, tensors_of(side.model)

        def call() -> Any:
            before = [x.detach().clone() for x in tensors]
            output = right()
            with torch.no_grad():
                for tensor, value in zip(tensors, before, strict=True):
                    tensor.copy_(value)
            return output

        side.call = call

    return lie


@pytest.mark.parametrize(
    ("phase", "make", "tensors_of", "words"),
    [
        (
            "optimizer_step",
            mlp,
            lambda m: [m[2].bias],
            "the step of 2.bias is off by 1 ",
        ),
        ("train_step", mlp, lambda m: [m[2].bias], "the step of 2.bias is off by 1 "),
        # The loss of training does not read them; the model that is used afterwards does.
        (
            "train_step",
            normed,
            lambda m: list(m.buffers()),
            "['buffers']['1.running_mean']",
        ),
    ],
)
def test_what_a_step_leaves_as_it_was_is_refused(
    phase: str, make: Any, tensors_of: Callable[[Any], list[torch.Tensor]], words: str
) -> None:
    loss = {"loss": lambda y, x: y.square().mean()}
    target = a_target(make, batch(4, 8), make_optimizer=momentum, **loss)
    outcome, message = refused(target, phase, lie=keeping(tensors_of))
    assert outcome is Outcome.WRONG_OUTPUT and words in message


def test_what_eager_overwrites_itself_may_be_overwritten() -> None:
    class Reusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)
            self.register_buffer("answer", torch.zeros(4, 4), persistent=False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.answer.copy_(self.linear(x)), self.linear(x)

    target, buffer = a_target(Reusing, batch(4, 8)), torch.empty(4, 4)
    assert judged(target).graphs >= 1
    second_too = changed(lambda output: (output[0], buffer.copy_(output[1])))
    assert "['outputs'][1] was overwritten" in refused(target, lie=second_too)[1]


def test_a_wrong_loss_is_refused() -> None:
    outcome, message = refused(
        a_target(mlp, batch(4, 8)), "train_step", lie=scaled(1.01)
    )
    assert outcome is Outcome.WRONG_OUTPUT and "['loss'] is off by 0.01" in message
