"""A compiled side's own random numbers: those that follow the seed pass, and others fail."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import test_side_checks
import test_training
import torch
from test_side_checks import Layer, a_target, batch, changed, judged, refused
from torch import nn
from torch._dynamo import register_backend
from torch._dynamo.backends.registry import _COMPILER_FNS

from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial.model.sides import Side
from autocompile.trial.model.target import Target
from autocompile.trial.verify import side_checks as checks
from autocompile.trial.verify.draws import Spread
from autocompile.trial.verify.reference import Reference

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")


def test_what_inductor_draws_is_accepted_and_not_compiled_with_fallback() -> None:
    """One program is compiled, which draws as a user's will."""
    seen = []

    def look(side: Side) -> None:
        import torch._inductor.config

        right = side.call

        def call() -> Any:
            seen.append(torch._inductor.config.fallback_random)
            return right()

        side.call = call

    target = a_target(noisy, batch(4, 8))
    verdict = judged(target, "forward", "inductor", lie=look)
    assert verdict.live is True and not any(seen)
    assert any("draws random numbers" in note for note in verdict.notes)


def test_phases_without_random_numbers_pay_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right, sides = Reference.another_side, []
    monkeypatch.setattr(
        Reference, "another_side", lambda *a: sides.append(a) or right(*a)
    )
    monkeypatch.setattr(checks, "_demand_repeats", None)
    monkeypatch.setattr(checks, "draws_of", None)
    assert judged(
        a_target(lambda: nn.Linear(8, 4), batch(4, 8)), "forward", "inductor"
    ).live
    assert len(sides) == 2, "eager mode twice, and no third side for its draws"


def noisy() -> nn.Module:
    """Dropout and noise in a forward pass, beside an output that no draw touches."""

    def then(
        hidden: torch.Tensor, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        noise = nn.functional.dropout(
            hidden + torch.randn_like(hidden), 0.5, training=True
        )
        return noise, hidden

    return Layer(then, 8, 64)


def first_by(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Side], None]:
    return changed(lambda output: (change(output[0]), output[1]))


def unseeded(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator()
    generator.seed()
    return torch.randn(x.shape, generator=generator)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (first_by(unseeded), "same seed"),
        (first_by(lambda x: x * 0 + 1.5), "whatever the seed"),
        (
            changed(lambda y: (y[0], y[1] * 1.01)),
            "['outputs'][1] is off by 0.01",
        ),  # no draw in it
    ],
)
def test_draws_that_cannot_be_right_are_refused(
    lie: Callable[[Side], None], words: str
) -> None:
    outcome, message = refused(a_target(noisy, batch(4, 8)), "forward", "inductor", lie)
    assert outcome is Outcome.WRONG_OUTPUT and words in message, message


def test_what_stands_elsewhere_is_found_although_its_draws_are_right() -> None:
    lie = first_by(lambda x: x.flip(0))
    target = a_target(noisy, batch(32, 8))
    outcome, message = refused(target, "forward", "inductor", lie)
    assert outcome is Outcome.WRONG_OUTPUT and "part of eager's mean" in message, (
        message
    )


def test_weights_that_a_side_with_draws_of_its_own_does_not_follow_are_stale() -> None:
    def lie(side: Side) -> None:
        first = copy.deepcopy(side.model)
        side.call = lambda: first(*side.inputs)

    outcome, _ = refused(a_target(noisy, batch(4, 8)), "forward", "inductor", lie)
    assert outcome is Outcome.STALE_WEIGHTS


def test_few_draws_may_be_the_same_for_some_seeds() -> None:
    def now_and_then(hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return hidden * (torch.rand(()) > 0.5)

    judged(
        a_target(lambda: Layer(now_and_then, 8, 64), batch(4, 8)), "forward", "inductor"
    )


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_a_seed_that_is_ignored_in_some_calls_is_found(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although one of some repeats agrees: the others draw other numbers."""
    calls = itertools.count(offset)

    def lie(side: Side) -> None:
        run = side.run

        def lying() -> Any:
            torch.manual_seed(12345 + next(calls) // 3)
            return run()

        side.run = lying  # type: ignore[method-assign]
        liars.append(side)

    liars: list[Side] = []
    monkeypatch.setattr(
        Reference,
        "draws_by_itself",
        lambda self, side: side in liars and self.is_random,
    )
    target = a_target(
        test_side_checks.dropping,
        batch(4, 8),
        make_optimizer=test_side_checks.momentum,
        loss=lambda y, x: y.square().mean(),
    )
    outcome, _ = refused(target, "train_step", CompileConfig("eager"), lie=lie)
    assert outcome is Outcome.WRONG_OUTPUT


# Draws of a step --------------------------------------------------------------------------------

RATE = 0.1


class Mixes(nn.Module):
    """A block of a language model; where it is compiled, its attention draws by another kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.drop = nn.Dropout(RATE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.transpose(-1, -2) / 6).softmax(-1)
        if torch.compiler.is_compiling():
            torch.rand_like(
                weights
            )  # such a kernel takes more numbers of the generator
        return x + self.drop(self.out(self.drop(weights) @ v))


class Text(nn.Module):
    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.tokens, self.block = nn.Embedding(64, 32), block()
        self.head = nn.Linear(32, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.tokens(ids)))


def plain_block() -> nn.Module:
    return nn.Sequential(
        nn.Dropout(RATE),
        nn.Linear(32, 64),
        nn.GELU(),
        nn.Dropout(RATE),
        nn.Linear(64, 32),
    )


def training(block: Callable[[], nn.Module] = plain_block) -> Target:
    return a_target(
        lambda: Text(block),
        lambda: (torch.randint(0, 64, (8, 20)),),
        make_optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
        loss=test_training.next_token,
    )


def test_an_attention_that_draws_otherwise_where_it_is_compiled_is_right() -> None:
    verdict = judged(training(Mixes), "train_step", "aot_eager")
    assert verdict.draws_otherwise, "else this asks nothing"


def test_what_leaves_the_generator_where_eager_does_has_to_give_what_eager_does() -> (
    None
):
    lie = changed(lambda y: (y[0].flip(0), y[1]))
    outcome, message = refused(
        a_target(noisy, batch(4, 8)), "forward", "aot_eager", lie
    )
    assert outcome is Outcome.WRONG_OUTPUT and "is off by" in message, message
    assert "seeds" not in message, message


class OtherMask(torch.autograd.Function):
    """Dropout whose backward pass draws its mask anew."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(x, RATE, True)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.dropout(grad, RATE, True)


def again(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(7)
    return torch.dropout(x, RATE, True)


LIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "honest": lambda x: torch.dropout(x, RATE, True),
    "twice": lambda x: torch.dropout(x, 2 * RATE, True),
    "never": lambda x: x,
    "unscaled": lambda x: torch.dropout(x, RATE, True) * (1 - RATE),
    "same_mask": again,
    "other_mask": lambda x: OtherMask.apply(x),
}


@pytest.fixture
def _lying_dropout() -> Iterator[None]:
    """Backends that draw a number before the graph, and have a dropout of their own."""
    before = set(_COMPILER_FNS)
    for name, lie in LIES.items():

        def backend(graph: Any, inputs: Any, lie: Any = lie) -> Any:
            found = [n for n in graph.graph.nodes if "dropout" in str(n.target)]
            assert found
            for node in found:
                node.target, node.args, node.kwargs = lie, node.args[:1], {}
            graph.recompile()

            def run(*args: Any) -> Any:
                torch.rand(1)
                return graph(*args)

            return run

        register_backend(backend, name=f"dropout_{name}")
    yield
    for name in set(_COMPILER_FNS) - before:
        del _COMPILER_FNS[name]


@pytest.mark.usefixtures("_lying_dropout")
@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("twice", "times as far as eager's"),
        ("never", "whatever the seed"),
        ("unscaled", "times as large as eager's"),
        ("same_mask", "whatever the seed"),
        ("other_mask", "not the slope of its loss"),
    ],
)
def test_a_dropout_that_is_wrong_is_found_without_another_compile(
    lie: str, words: str
) -> None:
    outcome, message = refused(training(), "train_step", f"dropout_{lie}")
    assert outcome is Outcome.WRONG_OUTPUT and words in message, message


@pytest.mark.usefixtures("_lying_dropout")
def test_a_dropout_that_is_right_passes_with_other_draws() -> None:
    verdict = judged(training(), "train_step", "dropout_honest")
    assert verdict.draws_otherwise, "else this asks nothing"


def test_dropout_where_eager_drops_nothing_is_found() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Text(plain_block)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            y = self.net(ids)
            if torch.compiler.is_compiling():
                y = nn.functional.dropout(y, RATE, training=True)
            return y

    target = a_target(Drops, lambda: (torch.randint(0, 64, (8, 20)),))
    outcome, message = refused(target, "forward", "aot_eager")
    assert outcome is Outcome.WRONG_OUTPUT and "is off by" in message, message


def twice_as_often(graph: Any) -> None:
    """Inductor's own dropout, at twice the rate and rightly scaled."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.gt.Scalar and node.args[1] == RATE:
            node.args = (node.args[0], 2 * RATE)
        scale = node.args[1] if node.target is torch.ops.aten.mul.Tensor else None
        if isinstance(scale, float) and scale == pytest.approx(1 / (1 - RATE)):
            node.args = (node.args[0], 1 / (1 - 2 * RATE))


def turned_in_the_backward_pass(graph: Any) -> None:
    """A mask that the backward pass has the other way round."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in [n for n in graph.nodes if n.target is torch.ops.aten.gt.Scalar]:
        last = max(node.users, key=lambda user: place[user])
        with graph.inserting_after(node):
            other = graph.call_function(torch.ops.prims.rev.default, (node, [0, 1]))
        other.meta = dict(node.meta)
        last.replace_input_with(node, other)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (twice_as_often, "times as far as eager's"),
        (turned_in_the_backward_pass, "not the slope of its loss"),
    ],
)
def test_a_dropout_of_inductors_that_is_wrong_is_found(
    lie: Callable[[Any], None], words: str
) -> None:
    import torch._inductor.config

    own = {"joint_custom_post_pass": lie, "force_disable_caches": True}
    with torch._inductor.config.patch(**own):
        outcome, message = refused(training(), "train_step", "inductor")
    assert outcome is Outcome.WRONG_OUTPUT and words in message, message


def test_what_the_host_keeps_is_compared_on_the_device() -> None:
    """Of a large model on a GPU; a device that computes nothing stands for it here."""
    seen = Spread()
    gradient = torch.randn(40, 30, device="meta")
    for _ in range(2):
        seen.add({"['x']": torch.randn(40, 30)}, {"x": gradient})
    spread = seen.variance("['x']")
    assert spread.device.type == "meta" and spread.shape == (3, 1 + 40 + 30)


class HardlyDrawn(nn.Module):
    """Draws move the gradient of a wide bias less than rounding does, since samples cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4096))
        self.drawn = nn.Parameter(torch.randn(64))
        self.drop = nn.Dropout(RATE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            short = x.bfloat16() + self.bias.bfloat16()
            wave = (short * 1.1).sin() * (short * 0.9).tanh()
        hardly = 1e-5 * self.drop(self.bias)
        return wave.float() + hardly + self.drop(self.drawn).mean()


def test_what_rounding_moves_further_than_draws_do_is_right() -> None:
    target = a_target(
        HardlyDrawn,
        lambda: (torch.randn(64, 4096),),
        make_optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
        loss=lambda y, x: y.mean(),
    )
    verdict = judged(target, "train_step", "inductor")
    assert verdict.draws_otherwise, "else this asks nothing"
