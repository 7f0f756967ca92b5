"""The check of training: gradients, and what an optimizer makes of the same ones.

On a GPU where there is one.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import test_side_checks
import torch
from test_side_checks import batch, called, judged, refused
from torch import nn
from torch.utils import _pytree as pytree

from autocompile.settings.config import EAGER, CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.target import Target
from autocompile.trial.verify import rounding
from autocompile.trial.verify.compare import ALL
from autocompile.trial.verify.reference import Reference
from autocompile.trial.verify.rounding import RoundOtherwise
from autocompile.trial.verify.side_checks import first_calls, last_call

Lie = Callable[[Side], None]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")


class Block(nn.Module):
    """A block of a small language model, with causal attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """Two blocks over 32 tokens, under bfloat16 autocast as people train; some rows stay unused."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.blocks = (
            nn.Embedding(64, 16),
            nn.Sequential(Block(16), Block(16)),
        )
        self.head, self.dropout = nn.Linear(16, 64, bias=False), nn.Dropout(dropout)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            return self.head(self.dropout(self.blocks(self.tokens(ids))))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)


def next_token(logits: torch.Tensor, inputs: Any) -> torch.Tensor:
    ids = inputs[0]
    flat = logits[:, :-1].float().reshape(-1, logits.shape[-1])
    return nn.functional.cross_entropy(flat, ids[:, 1:].reshape(-1))


def a_target(*args: Any, **changes: Any) -> Target:
    target = test_side_checks.a_target(*args, **changes)
    target.to(DEVICE)
    make_inputs = target.make_inputs
    target.make_inputs = lambda size: pytree.tree_map(
        lambda x: x.to(DEVICE), make_inputs(size)
    )
    return target


def decoder(dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> Any:
    return a_target(
        lambda: Decoder(dropout).to(dtype),
        lambda: (torch.randint(0, 48, (4, 16)),),
        make_optimizer=adamw,
        loss=next_token,
    )


def mlp() -> Any:
    return a_target(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)),
        batch(4, 8),
        make_optimizer=adamw,
        loss=lambda y, x: y.square().mean(),
    )


# --- honest -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_honest_steps_in_bfloat16_are_not_refused(seeds: int) -> None:
    """Steps of AdamW go by the signs of small gradients, which rounding decides."""
    target, implementations = decoder(), ("default", "fused", "for_loop", "foreach")
    for number in range(seeds):
        draws = target.make_inputs(4), target.make_inputs(4)
        reference = Reference(target, "train_step", draws, number, [])
        config = CompileConfig("eager", optimizer=implementations[number % 4])
        side = make_side(target, "train_step", draws[0], config)
        subject = called(reference, side)
        first_calls(reference, subject)
        last_call(reference, subject)


@pytest.mark.parametrize(
    "config",
    [
        "aot_eager",
        CompileConfig("aot_eager_decomp_partition", optimizer="fused"),
        # The compile alone takes many seconds; tests/trial/verify/test_gallery.py has small ones.
        pytest.param(
            CompileConfig("inductor", optimizer="fused"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_compiled_step_in_bfloat16_is_not_refused(config: Any) -> None:
    assert judged(decoder(), "train_step", config).graphs >= 1


def test_weights_in_bfloat16_are_not_refused() -> None:
    target = decoder(dtype=torch.bfloat16)
    for name in ("fused", "foreach"):
        judged(target, "optimizer_step", CompileConfig("eager", optimizer=name))
    judged(target, "train_step", "aot_eager")


@pytest.mark.slow  # quick: test_gallery.py, dropping in train_step
def test_dropout_with_draws_of_its_own_is_not_refused() -> None:
    judged(decoder(dropout=0.2), "train_step", "inductor")


class AddsInAnyOrder(torch.autograd.Function):
    """Its backward pass is off by a hundredth in some calls, as an attention's on a GPU was."""

    calls = 0
    is_off = staticmethod(lambda call: False)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        AddsInAnyOrder.calls += 1
        if not AddsInAnyOrder.is_off(AddsInAnyOrder.calls):
            return grad
        drawn = torch.Generator().manual_seed(AddsInAnyOrder.calls)
        off = torch.randn(grad.shape, generator=drawn).to(grad.device)
        return grad + 0.01 * grad.square().mean().sqrt() * off


class Unsteady(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = AddsInAnyOrder.apply(torch.tanh(self.first(x)))
        return self.second(hidden)


@pytest.mark.parametrize(
    "is_off",
    [
        lambda call: call == 1,
        lambda call: call % 4 == 0,
        lambda call: call % 4 == 1,
        lambda call: call > 1 and call % 3 == 0,
    ],
    ids=["eager's first", "every fourth", "first and every fourth", "every third"],
)
def test_what_moves_in_eager_by_itself_is_no_error_and_hides_none(
    is_off: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = a_target(
        Unsteady,
        batch(4, 8),
        make_optimizer=adamw,
        loss=lambda y, x: y.square().mean(),
    )
    monkeypatch.setattr(AddsInAnyOrder, "is_off", is_off)
    monkeypatch.setattr(AddsInAnyOrder, "calls", 0)
    judged(target, "train_step", EAGER)
    monkeypatch.setattr(AddsInAnyOrder, "calls", 0)
    outcome, message = refused(
        target, "train_step", EAGER, lie=after_backward(without_a_row)
    )
    assert outcome is Outcome.WRONG_OUTPUT and "first.weight" in message


class UnsteadyForward(torch.autograd.Function):
    """Adds a thousandth that is another one in each call."""

    drawn = torch.Generator()

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        off = torch.randn(x.shape, generator=UnsteadyForward.drawn).to(x.device)
        return x + 1e-3 * x.square().mean().sqrt() * off


class UnsteadyOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(UnsteadyForward.apply(torch.relu(self.first(x))))


def of_two_scales() -> Callable[[], Any]:
    """Inputs of which every second batch is a thousand times as large."""
    scales = itertools.cycle([1.0, 1000.0])
    return lambda: (next(scales) * torch.randn(4, 8),)


def zero_on_small_inputs(side: Side) -> None:
    run = side.run

    def lying() -> Any:
        output = run()
        is_small = side.inputs[0].abs().max() < 10
        return torch.zeros_like(output) if is_small else output

    side.run = lying  # type: ignore[method-assign]


def test_what_a_large_batch_moves_by_excuses_no_small_one() -> None:
    judged(a_target(UnsteadyOutput, of_two_scales()), "forward", EAGER)
    target = a_target(UnsteadyOutput, of_two_scales())
    outcome, message = refused(target, "forward", EAGER, lie=zero_on_small_inputs)
    assert outcome is Outcome.WRONG_OUTPUT and "off by 1 " in message


class Rounded(torch.optim.SGD):
    """Orthogonalizing optimizers cast gradients so."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=1e-3)

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.grad = p.grad.bfloat16().float()
        return super().step(closure)


class Normed(nn.Module):
    """Has a buffer and a weight that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 4)
        self.second.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)))


def test_finding_how_far_rounding_moves_changes_nothing() -> None:
    target = a_target(Normed, batch(4, 8), make_optimizer=adamw)
    draws = target.make_inputs(4), target.make_inputs(4)
    reference = Reference(target, "train_step", draws, 0, [])
    reference.eager.restore()
    tensors = {
        **reference.eager.model.state_dict(),
        "target": target.model.first.weight,
    }
    before = {name: x.clone() for name, x in tensors.items()}
    moved = reference.moved(1, 4)
    assert moved.tries == 4
    assert moved.of_gradients > 0
    assert moved.length(ALL) > 0
    assert all(torch.equal(x, tensors[name]) for name, x in before.items())


def test_operations_are_rounded_otherwise_by_as_much_as_rounding() -> None:
    """Views, copies, masks and choices are exact; sums in place are not."""
    x, y = torch.randn(2, 4000, dtype=torch.float64, device=DEVICE).unbind()
    short = (x.bfloat16(), y.bfloat16())
    state = torch.random.get_rng_state()
    with RoundOtherwise(0):
        clone, view = short[0].clone(), short[0].view(-1, 2)
        product = short[0] * short[1]
        total = short[0].clone().add_(short[1])
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(clone, short[0]) and torch.equal(view.flatten(), short[0])
    for got, want in ((product, short[0] * short[1]), (total, short[0] + short[1])):
        exact = (short[0].double(), short[1].double())
        exact = exact[0] * exact[1] if got is product else exact[0] + exact[1]
        rounding, moved = (want - exact).norm(), (got - want).norm()
        assert 0.7 < float(moved / rounding) < 1.8
    with RoundOtherwise(1):
        assert not torch.equal(product, short[0] * short[1])
        assert not torch.equal(x * y, x * y)
        mask = (1 - torch.tril(torch.ones(64, 64, device=DEVICE) * 1.0)) * -1e9
        drawn = torch.rand_like(x), torch.full_like(x, 0.5).bernoulli()
        chosen = (
            x.round(),
            x.relu(),
            x[:1].gather(0, torch.zeros(4, dtype=torch.long, device=DEVICE)),
        )
    assert set(mask.unique().tolist()) == {0.0, -1e9}
    assert set(drawn[1].unique().tolist()) == {0.0, 1.0}
    assert torch.equal(chosen[0], x.round()) and torch.equal(chosen[1], x.relu())
    assert torch.equal(chosen[2], x[:1].expand(4))


def test_of_few_results_about_sixteen_are_rounded_otherwise() -> None:
    for count, least, most in ((1, 1, 1), (16, 16, 16), (200, 4, 40), (8800, 300, 500)):
        x, one = (
            torch.rand(count, device=DEVICE).add_(0.5),
            torch.tensor(1.5, device=DEVICE),
        )
        with RoundOtherwise(0):
            rounded = x * one
        assert least <= int((rounded != x * one).sum()) <= most


def test_operands_of_products_in_tf32_are_rounded_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What all positions share does not average out: the mean of a channel."""
    conv = torch.nn.Conv2d(3, 8, 3).to(DEVICE).requires_grad_(False)
    x = torch.rand(64, 3, 32, 32, device=DEVICE)

    def mean() -> torch.Tensor:
        return conv(x).mean((0, 2, 3)).double()

    def of_ten_bits(x: torch.Tensor) -> torch.Tensor:
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    monkeypatch.setattr(rounding, "_of_tensor_cores", lambda x, name: 0.0)
    with RoundOtherwise(0):
        in_float32 = mean()
    monkeypatch.setattr(rounding, "_of_tensor_cores", lambda x, name: 2.0**-10)
    with RoundOtherwise(0):
        moved = mean()
        only_bias = torch.nn.functional.conv2d(x[:2], 0 * conv.weight, conv.bias)
        only_bias -= torch.addmm(conv.bias, 0 * x[0, 0, :1, :8], x[0, 0, :8, :8])[0][
            :, None, None
        ]
    assert only_bias.abs().max() < 1e-6  # which is added in float32
    exact = torch.nn.functional.conv2d(
        x.double(), conv.weight.double(), conv.bias.double()
    )
    exact = exact.mean((0, 2, 3))
    short = of_ten_bits(x).double(), of_ten_bits(conv.weight).double()
    short = torch.nn.functional.conv2d(*short, conv.bias.double()).mean((0, 2, 3))
    assert (in_float32 - exact).norm() < 0.03 * (short - exact).norm()
    assert 0.5 < (moved - exact).norm() / (short - exact).norm() < 3


def test_how_cublas_adds_up_is_as_it_was() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    with contextlib.suppress(RuntimeError), RoundOtherwise(0):
        assert before and not matmul.allow_bf16_reduced_precision_reduction
        raise RuntimeError
    assert matmul.allow_bf16_reduced_precision_reduction == before


def moved_by(target: Target) -> dict[str, float]:
    """What rounding moves each gradient of a first step by, relative to itself."""
    draws = target.make_inputs(4), target.make_inputs(4)
    moved = Reference(target, "train_step", draws, 0, []).moved(0, 4)
    assert moved is not None
    return {
        path: float((leaf.together[0] / leaf.together[1]).sqrt())
        for path, leaf in moved.leaves.items()
        if "gradients" in path and leaf.together is not None
    }


def test_how_far_rounding_moves_gradients_is_known() -> None:
    moved = moved_by(decoder(dropout=0.2))
    assert 1e-3 < max(e for path, e in moved.items() if "weight" in path) < 0.1
    exact = mlp()
    assert 0 < max(moved_by(exact).values()) < 1e-5
    exact.make_optimizer = Rounded  # it computes in bfloat16, and the model does not
    assert max(moved_by(exact).values()) < 1e-2


class Settling(nn.Module):
    """What it learns first makes its gradients a hundred times smaller within two steps.

    Softmax does not see the shift, of whose gradient rounding alone is left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.shift = nn.Linear(8, 32), nn.Parameter(torch.zeros(64, 1))
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.scores(x).bfloat16() + self.shift.bfloat16()
        return self.gain.square() * -scores.log_softmax(-1)[:, 0].float()


def test_a_first_step_is_judged_by_what_rounding_moves_there() -> None:
    """As in a ViT, whose loss two steps of AdamW halve: all that compiled was refused there."""

    def honest(side: Side) -> None:
        unit = side.unit

        def rounded_otherwise(inputs: Any) -> Any:
            with RoundOtherwise(99):
                return unit(inputs)

        side.unit = rounded_otherwise

    target = a_target(
        Settling,
        batch(64, 8),
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=lambda y, x: y.mean(),
    )
    judged(target, "train_step", "eager", honest)


def test_operations_that_only_choose_or_move_numbers_round_none() -> None:
    """Also those whose names stand at the end of a line of the list."""
    x = torch.randn(64, dtype=torch.bfloat16, device=DEVICE)
    places = torch.arange(63, -1, -1, device=DEVICE)
    with RoundOtherwise(0):
        indexed, smaller, upper = x[places], torch.minimum(x, -x), x.view(8, 8).triu()
        copied = torch.empty_like(x).copy_(x)
    assert torch.equal(indexed, x.flip(0))
    assert torch.equal(smaller, -x.abs())
    assert torch.equal(upper, x.view(8, 8).triu())
    assert torch.equal(copied, x)


@pytest.mark.parametrize(
    "make", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam]
)
def test_other_optimizers_are_not_refused(make: Any) -> None:
    target = mlp()
    target.make_optimizer = lambda model: make(model.parameters(), lr=1e-3, momentum=0.9) if (
        make is not torch.optim.NAdam
    ) else make(model.parameters(), lr=1e-3)  # fmt: skip
    judged(target, "train_step", CompileConfig("eager", optimizer="foreach"))


# --- liars --------------------------------------------------------------------------------------


def after_backward(change: Callable[[dict[str, torch.Tensor | None]], None]) -> Lie:
    """A compiled side whose gradients are changed before its optimizer sees them."""

    def lie(side: Side) -> None:
        (optimizer,) = side.optimizers
        step = optimizer.step

        def lying(*args: Any) -> Any:
            grads = {name: p.grad for name, p in side.parameters.items()}
            change(grads)
            for name, p in side.parameters.items():
                p.grad = grads[name]
            return step(*args)

        optimizer.step = lying

    return lie


def scaled(grads: dict[str, Any]) -> None:
    for name in grads:
        grads[name] = grads[name] * 1.05


def without_a_row(grads: dict[str, Any]) -> None:
    grads["first.weight"][3] = 0.0


def zero(grads: dict[str, Any]) -> None:
    grads["0.weight"] = torch.zeros_like(grads["0.weight"])


def missing(grads: dict[str, Any]) -> None:
    grads["2.bias"] = None


class OfTheBatchBefore:
    """Gives each step the gradients of the one before."""

    def __init__(self) -> None:
        self.before: dict[str, Any] = {}

    def __call__(self, grads: dict[str, Any]) -> None:
        now = {name: g.clone() for name, g in grads.items()}
        grads.update(self.before or now)
        self.before = now


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (scaled, "['gradients']['0.weight'] is off by 0.05"),
        (zero, "['gradients']['0.weight'] is off by 1 "),
        (missing, "another structure"),
        (OfTheBatchBefore(), "['gradients']"),
    ],
    ids=["scaled", "zero", "missing", "of the batch before"],
)
def test_a_wrong_gradient_is_found(change: Any, words: str) -> None:
    outcome, message = refused(mlp(), "train_step", lie=after_backward(change))
    assert outcome is Outcome.WRONG_OUTPUT and words in message


class Redrawn(torch.autograd.Function):
    """Dropout whose mask is drawn anew in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand_like(x) > 0.5) * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * (torch.rand_like(grad) > 0.5) * 2


def test_masks_drawn_anew_in_the_backward_pass_are_found() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.lies = (
                nn.Linear(8, 64),
                nn.Linear(64, 4),
                False,
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            if self.lies:
                return self.second(Redrawn.apply(hidden))
            return self.second(hidden * (torch.rand_like(hidden) > 0.5) * 2)

    def lie(side: Side) -> None:
        side.model.lies = True  # type: ignore[assignment]

    target = a_target(Dropping, batch(4, 8), make_optimizer=adamw)
    outcome, message = refused(target, "train_step", EAGER, lie=lie)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "gradients are not the slope of its loss" in message


class Aliased(torch.autograd.Function):
    """A backward pass that scales the gradient which it was given, in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.contiguous().mul_(0.9) if grad.is_contiguous() else grad * 0.9


def test_a_gradient_that_is_changed_in_place_is_found() -> None:
    class Forking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.lies = nn.Linear(8, 4), nn.Linear(8, 4), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left = self.first(x)
            return (Aliased.apply(left) if self.lies else left) + self.second(x)

    def lie(side: Side) -> None:
        side.model.lies = True  # type: ignore[assignment]

    target = a_target(Forking, batch(4, 8), make_optimizer=adamw)
    outcome, message = refused(target, "train_step", EAGER, lie=lie)
    assert outcome is Outcome.WRONG_OUTPUT and "['gradients']" in message


def changed(**values: float) -> Lie:
    def lie(side: Side) -> None:
        for group in side.optimizers[0].param_groups:
            group.update(values)

    return lie


def skips(side: Side) -> None:
    group = side.optimizers[0].param_groups[0]
    group["params"] = group["params"][:-1]


def counts_ahead(side: Side) -> None:
    """Its bias correction is that of a later step."""
    step = side.optimizers[0].step

    def lying(*args: Any) -> Any:
        for state in side.optimizers[0].state.values():
            state["step"] += 5
        result = step(*args)
        for state in side.optimizers[0].state.values():
            state["step"] -= 5
        return result

    side.optimizers[0].step = lying


def does_nothing(side: Side) -> None:
    side.optimizers[0].step = lambda: None


@pytest.mark.parametrize("phase", ["optimizer_step", "train_step"])
@pytest.mark.parametrize(
    "lie",
    [changed(lr=3.1e-4), changed(weight_decay=0.1), changed(eps=1e-3), skips, counts_ahead,
     does_nothing],
    ids=["lr", "weight decay", "eps", "skips a tensor", "step count", "does nothing"],
)  # fmt: skip
def test_a_wrong_step_is_found(phase: str, lie: Lie) -> None:
    outcome, message = refused(mlp(), phase, EAGER, lie=lie)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "the step of" in message or "the optimizer" in message


def demand_no_mode() -> None:
    if torch._C._len_torch_dispatch_stack():
        raise RuntimeError("this kernel is not for modes")


def test_a_model_that_cannot_be_rounded_otherwise_is_judged_by_a_wider_tolerance_and_said() -> (
    None
):
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            demand_no_mode()
            return self.linear(x)

    def off(side: Side) -> None:
        call = side.call
        side.call = lambda: call() * (1 + factor)

    factor = 5e-4
    notes = judged(a_target(Narrow, batch(4, 8)), config=EAGER, lie=off).notes
    assert sum("this kernel is not for modes" in note for note in notes) == 1
    factor = 5e-3
    outcome, message = refused(a_target(Narrow, batch(4, 8)), config=EAGER, lie=off)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "off by 0.005" in message


def test_an_optimizer_that_cannot_be_rounded_otherwise_is_judged_by_a_wider_tolerance_and_said() -> (
    None
):
    class Narrow(torch.optim.SGD):
        tries = 0

        def step(self, closure: Any = None) -> None:
            if torch._C._len_torch_dispatch_stack():
                Narrow.tries += 1
            demand_no_mode()
            super().step(closure)

    def narrow() -> Target:
        return a_target(
            lambda: nn.Linear(8, 4),
            batch(4, 8),
            make_optimizer=lambda model: Narrow(model.parameters(), lr=0.1),
        )

    lie = changed(lr=0.1 * (1 + 5e-4))
    notes = judged(narrow(), "optimizer_step", EAGER, lie=lie).notes
    assert sum("this kernel is not for modes" in note for note in notes) == 1
    lie = changed(lr=0.1 * (1 + 5e-3))
    outcome, message = refused(narrow(), "optimizer_step", EAGER, lie=lie)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "the step of" in message


def test_the_state_after_the_checks_is_the_one_that_eager_has_kept() -> None:
    target = mlp()
    reference = Reference(
        target, "train_step", (target.make_inputs(4), target.make_inputs(4)), 0, []
    )
    kept = copy.deepcopy(reference.eager.kept)
    side = make_side(
        target, "train_step", reference.batches[0], CompileConfig("aot_eager")
    )
    subject = called(reference, side)
    first_calls(reference, subject)
    last_call(reference, subject)
    reference.eager.restore()
    reference.eager.keep()
    assert kept.values.keys() == reference.eager.kept.values.keys()
    for name, ours in kept.values.items():
        assert torch.equal(ours, reference.eager.kept.values[name])
