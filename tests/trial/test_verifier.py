"""Verifier: honest models pass in every phase, and each kind of liar fails with its outcome."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.backends.registry import register_backend
from torch.utils._pytree import register_pytree_node

from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial.inspect import telemetry
from autocompile.trial.phases.phases import make_side
from autocompile.trial.phases.side import Side
from autocompile.trial.process.failures import Failed
from autocompile.trial.target.target import Target, adam, seed_everything, sum_of_floats
from autocompile.trial.verify.random_draws import compare_with_eagers_draws, demand_plausible_draws
from autocompile.trial.verify.verifier import Verifier

Lie = Callable[[Side], None]
PHASES = ("forward", "optimizer_step", "train_step")
pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], tuple[torch.Tensor]]:
    return lambda: (torch.randn(*shape).to(dtype),)


def a_target(make: Callable[[], nn.Module], inputs: Callable[[], Any], **changes: Any) -> Target:
    seed_everything(0)
    made = Target("functions", make(), [], lambda _: inputs(), adam, sum_of_floats)
    return dataclasses.replace(made, **changes)


@dataclasses.dataclass
class Verdict:
    """What a trial that went well had to say."""

    notes: list[str]
    live: bool | None
    graphs: int


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
    draws: list[Any] = [None, None]
    if phase != "optimizer_step":
        for draw in (0, 1):
            seed_everything(1000 * (draw + 1))
            draws[draw] = target.make_inputs(4)
    notes: list[str] = []
    verifier = Verifier(target, phase, (draws[0], draws[1]), 0, notes)
    verifier.eager.run()  # as the memory measurement does
    telemetry.reset_dynamo(config.backend)
    compiled = make_side(target, phase, draws[0], config)
    if lie is not None:
        lie(compiled)
    with verifier.comparable_random_numbers(compiled):
        verifier.first_calls(compiled, verifier.seeded_call(compiled, 0))
        demand_plausible_draws(verifier, compiled, notes)
        live = verifier.weights(compiled)
        compiled.keep()
        for side in (verifier.eager, compiled, compiled, verifier.eager):
            side.restore()
            side.run()
            side.run()
        if while_timed is not None:
            while_timed(compiled)
        verifier.last_call(compiled)
    graphs = telemetry.dynamo_facts().graphs
    compare_with_eagers_draws(verifier, compiled, config)
    return Verdict(notes, live, graphs)


def refused(*args: Any, **kwargs: Any) -> tuple[Outcome, str]:
    with pytest.raises(Failed) as caught:
        judged(*args, **kwargs)
    return caught.value.outcome, str(caught.value)


# --- honest -------------------------------------------------------------------------------------


class ChangesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.add_(1)
        return self.linear(x)


class Counting(nn.Module):
    """A buffer that each call changes and that the output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.linear(x) * self.calls


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 3),
    )


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 2))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 4))


HONEST: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "mlp": (mlp, batch(4, 8)),
    "bfloat16": (lambda: mlp(torch.bfloat16), batch(4, 8, dtype=torch.bfloat16)),
    "float16": (lambda: mlp(torch.float16), batch(4, 8, dtype=torch.float16)),
    "float64": (lambda: mlp(torch.float64), batch(4, 8, dtype=torch.float64)),
    "dropout": (dropping, batch(4, 8)),
    "batch norm": (convolution, batch(4, 3, 8, 8)),
}


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that compiles in a moment."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_backend_passes(name: str, phase: str) -> None:
    optimizer = adam if name in ("mlp", "bfloat16") else momentum
    verdict = judged(a_target(*HONEST[name], make_optimizer=optimizer), phase)
    assert verdict.graphs >= 1
    assert verdict.live is (True if phase == "forward" else None)


class LibraryOutput(OrderedDict):  # type: ignore[type-arg]
    """As those of diffusers: registered with pytree, but without names for its parts."""


register_pytree_node(
    LibraryOutput,
    lambda output: (list(output.values()), list(output)),
    lambda values, names: LibraryOutput(zip(names, values, strict=True)),
)


class Library(nn.Module):
    """Its output holds a distribution, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> LibraryOutput:
        mean = self.linear(x)
        noisy = torch.distributions.Normal(mean, mean.abs() + 1)
        return LibraryOutput([("sample", mean * 2), ("latent", noisy)])


@pytest.mark.parametrize("phase", ["forward", "train_step"])
def test_what_a_library_returns_passes_and_is_judged(phase: str) -> None:
    target = a_target(Library, batch(4, 8), make_optimizer=momentum)
    assert judged(target, phase).graphs >= 1

    @register_backend
    def one_percent_more(graph: Any, inputs: Any) -> Any:
        return lambda *args: [x * 1.01 for x in graph(*args)]

    assert refused(target, phase, "one_percent_more")[0] is Outcome.WRONG_OUTPUT


def test_a_distribution_alone_has_a_loss() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.distributions.Categorical:
            return torch.distributions.Categorical(logits=self.linear(x))

    target = a_target(Policy, batch(4, 8), make_optimizer=momentum)
    assert judged(target, "train_step").graphs >= 1


def test_inductor_passes_with_a_linear_bias_before_a_batch_norm() -> None:
    """That bias has a gradient of pure rounding noise, of which Adam makes steps of either sign."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

    assert judged(a_target(model, batch(16, 8)), "train_step", "inductor").graphs >= 1


def test_a_backend_that_rounds_better_than_eager_passes() -> None:
    """Differences that cancel in bfloat16: the plain tolerance refuses, float64 settles it."""

    class Cancels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.linear(x) + 10
            return hidden - hidden.mean(-1, keepdim=True)

    @register_backend
    def wide(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            outputs = graph(*(a.float() if isinstance(a, torch.Tensor) else a for a in args))
            return tuple(o.bfloat16() for o in outputs)

        return run

    target = a_target(lambda: Cancels().bfloat16(), batch(8, 32, dtype=torch.bfloat16))
    assert judged(target, "forward", "wide").live is True


def test_a_module_that_changes_its_input_is_fed_the_same_input_each_time() -> None:
    target = a_target(ChangesItsInput, batch(4, 8))
    assert judged(target).notes == []
    assert refused(target, lie=scaled(1.01))[0] is Outcome.WRONG_OUTPUT


def test_a_module_with_state_of_its_own_passes() -> None:
    verdict = judged(a_target(Counting, batch(4, 8)))
    assert verdict.notes == []
    assert refused(a_target(Counting, batch(4, 8)), lie=scaled(1.01))[0] is Outcome.WRONG_OUTPUT


def test_weights_whose_effect_is_not_visible_are_not_called_live() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :4] + 1e-6 * self.linear(x)

    assert judged(a_target(Hidden, batch(4, 8))).live is None


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
        verifier = Verifier(target, phase, (target.make_inputs(4), target.make_inputs(4)), 0, [])
        for backend in ("aot_eager", "inductor"):
            side = make_side(target, phase, None, CompileConfig(backend=backend))
            with verifier.comparable_random_numbers(side):
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


class Unsteady(nn.Module):
    """One output that no two runs share, beside one that all do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.linear(x)
        return from_nowhere(), output


def test_noise_of_eager_is_said() -> None:
    notes = judged(a_target(Unsteady, batch(4, 8))).notes
    assert any("eager differs from itself by" in note for note in notes)


class Wild(nn.Module):
    """Eager itself never gives the same twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (from_nowhere() - 1) * 50


def test_nothing_is_compared_with_an_eager_that_differs_from_itself() -> None:
    target = a_target(Wild, batch(4, 8))
    outcome, message = refused(target)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "eager differs from itself by" in message
    assert message.endswith("so nothing can be compared with it")


def test_an_output_without_a_tensor_is_refused() -> None:
    class Number(nn.Module):
        def forward(self, x: torch.Tensor) -> int:
            return x.shape[0]

    outcome, message = refused(a_target(Number, batch(4, 8)))
    assert outcome is Outcome.WRONG_OUTPUT and "returns no tensor" in message


def test_noise_in_one_output_does_not_excuse_an_error_in_another() -> None:
    lie = changed(lambda output: (output[0], output[1] * 1.2))
    assert refused(a_target(Unsteady, batch(4, 8)), lie=lie)[0] is Outcome.WRONG_OUTPUT


# --- liars --------------------------------------------------------------------------------------


def changed(change: Callable[[Any], Any]) -> Lie:
    """A compiled side whose every answer is changed."""

    def lie(side: Side) -> None:
        right = side.call
        side.call = lambda: change(right())

    return lie


def scaled(factor: float) -> Lie:
    return changed(lambda output: output * factor)


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
    outcome, message = refused(a_target(mlp, batch(4, 8)), "train_step", lie=overwriting)
    assert outcome is Outcome.WRONG_OUTPUT
    assert message.endswith("was overwritten by the next call (call 2)")


def test_what_cuda_graphs_overwrite_by_contract_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed(side: Side) -> None:
        overwriting(side)
        side.reuses_outputs = True

    notes = judged(a_target(mlp, batch(4, 8)), lie=allowed).notes
    said = "outputs are overwritten by the next call (CUDA graphs): clone what you keep"
    assert notes == [said]


def test_a_liar_fails_with_an_outcome_where_float64_is_impossible() -> None:
    """The model casts its input itself, so that it cannot run in double precision."""

    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x.float()) * 2

    target = a_target(Casts, batch(4, 8))
    assert judged(target).live is True
    outcome, message = refused(target, lie=scaled(1.01))
    assert outcome is Outcome.WRONG_OUTPUT and "off by 0.01" in message


# --- liars in training --------------------------------------------------------------------------


def test_a_backend_whose_optimizer_step_changes_nothing_is_refused() -> None:
    @register_backend
    def leaves_all_alone(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            tensors = [*graph.parameters(), *graph.buffers()]
            saved = [t.detach().clone() for t in tensors]
            outputs = graph(*args)
            with torch.no_grad():
                for tensor, value in zip(tensors, saved, strict=True):
                    tensor.copy_(value)
            return outputs

        return run

    outcome, message = refused(a_target(mlp, batch(4, 8)), "optimizer_step", "leaves_all_alone")
    assert outcome is Outcome.WRONG_OUTPUT and "['updates']" in message


@pytest.mark.parametrize("phase", ["optimizer_step", "train_step"])
def test_one_parameter_that_is_left_out_of_the_step_is_refused(phase: str) -> None:
    def lie(side: Side) -> None:
        right, bias = side.call, side.model[2].bias

        def call() -> Any:
            before = bias.detach().clone()
            output = right()
            with torch.no_grad():
                bias.copy_(before)
            return output

        side.call = call

    target = a_target(mlp, batch(4, 8), loss=lambda y, x: y.square().mean())
    outcome, message = refused(target, phase, lie=lie)
    assert outcome is Outcome.WRONG_OUTPUT and "['updates']['2.bias']" in message


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
    outcome, message = refused(a_target(mlp, batch(4, 8)), "train_step", lie=scaled(1.01))
    assert outcome is Outcome.WRONG_OUTPUT and "['loss'] is off by 0.01" in message


def test_running_statistics_that_are_not_updated_are_refused() -> None:
    """The loss of training does not read them; the model that is used afterwards does."""

    def lie(side: Side) -> None:
        right, statistics = side.call, dict(side.model.named_buffers())

        def call() -> Any:
            saved = {name: b.clone() for name, b in statistics.items()}
            loss = right()
            for name, b in statistics.items():
                b.copy_(saved[name])
            return loss

        side.call = call

    target = a_target(normed, batch(4, 8), make_optimizer=momentum)
    assert refused(target, "train_step", lie=lie)[0] is Outcome.WRONG_OUTPUT


def test_a_step_that_forgets_its_momentum_is_refused() -> None:
    """Its first step is right; only the state that it does not keep shows at the second."""
    target = a_target(
        mlp,
        batch(4, 8),
        make_optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    )

    def lie(side: Side) -> None:
        right, held = side.call, side.held

        def call() -> None:
            right()
            for state in held()[2]:
                state["momentum_buffer"].zero_()

        side.call = call

    outcome, message = refused(target, "optimizer_step", lie=lie)
    assert outcome is Outcome.WRONG_OUTPUT and message.endswith("(call 2)")
