"""Each kind of lie, told in float32, under autocast and in bfloat16, is found; what is right passes.

A lie is one change of what an honest side gives, as a compiler's error would be: a row, a class, a
factor. Other lies of optimizers and of random numbers are in ``test_training.py``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_side_checks import Layer, a_target, batch, called, changed, judged, refused
from test_training import Block, after_backward, next_token
from torch import nn

from autocompile.settings.config import EAGER, CompileConfig
from autocompile.store.record import Outcome
from autocompile.trial import values as trees
from autocompile.trial.model.calls import Calls, between
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.target import Target
from autocompile.trial.verify import side_checks as checks
from autocompile.trial.verify.reference import Reference

Change = Callable[[torch.Tensor], Any]
PRECISIONS = ("float32", "autocast", "bfloat16")
pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")


class Net(nn.Module):
    """A language model of one block; 8 texts of 40 tokens have 320 positions."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.tokens, self.block = nn.Embedding(300, 32), Block(32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 64, bias=False)
        self.is_cast = precision == "autocast"

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.is_cast):
            return self.head(self.norm(self.block(self.tokens(ids))))


class Labels(Net):
    """Gives the likeliest token of each position, too."""

    def forward(self, ids: torch.Tensor) -> Any:
        logits = super().forward(ids)
        return logits, logits.argmax(-1)


def in_precision(model: nn.Module, precision: str) -> nn.Module:
    return model.bfloat16() if precision == "bfloat16" else model


def net(precision: str, kind: type[Net] = Net) -> Target:
    return a_target(
        lambda: in_precision(kind(precision), precision),
        lambda: (torch.randint(0, 64, (8, 40)),),
        make_optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
        loss=next_token,
    )


def value(precision: str) -> Target:
    """A head of one number, as value functions have: rounding of few numbers is by lot."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32

    class Value(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(16, 64),
                nn.Tanh(),
                nn.Linear(64, 64),
                nn.Tanh(),
                nn.Linear(64, 1),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            is_cast = precision == "autocast"
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast):
                return self.net(x)

    return a_target(
        lambda: in_precision(Value(), precision),
        batch(4, 16, dtype=dtype),
        make_optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
        loss=lambda y, x: y.float().square().mean(),
    )


# --- honest --------------------------------------------------------------------------------------

# Decomposes operations, so that much is rounded otherwise than by eager's kernels.
OTHERWISE = CompileConfig("aot_eager_decomp_partition")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("phase", ["forward", "train_step"])
@pytest.mark.parametrize("make", [net, functools.partial(net, kind=Labels), value])
def test_what_is_rounded_otherwise_is_right(
    make: Callable[[str], Target], phase: str, precision: str
) -> None:
    target = make(precision)
    if phase == "train_step" and isinstance(target.model, Labels):
        target.loss = lambda output, inputs: next_token(output[0], inputs)
    assert judged(target, phase, OTHERWISE).graphs >= 1


# --- forward passes ------------------------------------------------------------------------------


def row(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[5, 17] = 0
    return y


def one_class(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[..., 40] = y[..., 41]
    return y


def sample(y: torch.Tensor) -> torch.Tensor:
    y = y.clone()
    y[-1] = y[0]
    return y


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("change", [row, one_class, sample])
def test_one_wrong_row_class_or_sample_is_found(change: Change, precision: str) -> None:
    """A row is one of 320: less than rounding in bfloat16 in the mean over all."""
    outcome, message = refused(net(precision), "forward", EAGER, changed(change))
    assert outcome is Outcome.WRONG_OUTPUT
    assert "is off by" in message


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_value_that_is_off_by_a_tenth_is_found(factor: float, precision: str) -> None:
    lie = changed(lambda y: y * factor)
    outcome, message = refused(value(precision), "forward", EAGER, lie)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "is off by" in message


@pytest.mark.parametrize("precision", PRECISIONS)
def test_more_flipped_labels_than_rounding_flips_are_found(precision: str) -> None:
    """In float32 one of 320; in bfloat16 some are near ties, which any rounding flips."""
    flipped = 1 if precision == "float32" else 60

    def flip(output: Any) -> Any:
        logits, labels = output
        labels = labels.clone()
        labels.view(-1)[:flipped] += 1
        return logits, labels

    target = net(precision, Labels)
    outcome, message = refused(target, "forward", EAGER, changed(flip))
    assert outcome is Outcome.WRONG_OUTPUT
    assert f"['outputs'][1] differs in {flipped} elements" in message


def counting(precision: str) -> Target:
    """An own step that returns Python numbers: its loss, and how many it got right."""
    target = net(precision)

    def get_step(model: nn.Module, optimizer: Any) -> Callable[[Any], Any]:
        def step(inputs: Any) -> tuple[float, int]:
            optimizer.zero_grad()
            logits = model(*inputs)
            loss = next_token(logits, inputs)
            loss.backward()
            optimizer.step()
            right = int((logits.argmax(-1) == inputs[0]).sum())
            return loss.item(), right

        return step

    return dataclasses.replace(target, make_step=get_step, own_phase="step")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_numbers_that_a_step_returns_may_be_rounded_otherwise(precision: str) -> None:
    assert judged(counting(precision), "step", OTHERWISE).graphs >= 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_wrong_numbers_of_a_step_are_found(precision: str) -> None:
    for lie, words in (
        (changed(lambda y: (y[0] * 1.1, y[1])), "['outputs'][0] is"),
        (changed(lambda y: (y[0], y[1] + 200)), "['outputs'][1] is"),
    ):
        outcome, message = refused(counting(precision), "step", EAGER, lie)
        assert outcome is Outcome.WRONG_OUTPUT
        assert words in message


# --- gradients and updates -----------------------------------------------------------------------

Gradients = dict[str, Any]


def scaled(factor: float) -> Callable[[Gradients], None]:
    def scale(grads: Gradients) -> None:
        for name in grads:
            grads[name] = grads[name] * factor

    return scale


def zero(grads: Gradients) -> None:
    grads["block.up.weight"] = torch.zeros_like(grads["block.up.weight"])


def missing(grads: Gradients) -> None:
    grads["block.up.weight"] = None


def one_row(grads: Gradients) -> None:
    table = grads["tokens.weight"].clone()
    table[7] = 0
    grads["tokens.weight"] = table


def one_head(grads: Gradients) -> None:
    weight = grads["head.weight"].clone()
    weight[:, 3] = -weight[:, 3]
    grads["head.weight"] = weight


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "change",
    # What is off by more than 1.02 is further from right.
    [scaled(1.02), zero, missing, one_row, one_head],
    ids=["1.02", "zero", "missing", "row of an embedding", "column"],
)
def test_a_wrong_gradient_is_found_in_every_precision(
    change: Callable[[Gradients], None], precision: str
) -> None:
    lie = after_backward(change)
    outcome, message = refused(net(precision), "train_step", EAGER, lie)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "gradient" in message or "another structure" in message


@pytest.mark.parametrize("factor", [1.001, 0.999])
def test_in_float32_a_gradient_is_found_that_is_off_by_a_thousandth(
    factor: float,
) -> None:
    lie = after_backward(scaled(factor))
    outcome, message = refused(net("float32"), "train_step", EAGER, lie)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "gradient" in message


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_that_an_optimizer_skips_is_found(precision: str) -> None:
    def skips(side: Side) -> None:
        (optimizer,), step = side.optimizers, side.optimizers[0].step

        def lying(*args: Any) -> Any:
            table = side.parameters["tokens.weight"]
            before = table.detach()[7].clone()
            result = step(*args)
            with torch.no_grad():
                table[7] = before
            return result

        optimizer.step = lying

    target = net(precision)
    # So large that a step is more than rounding of the parameters in bfloat16.
    target.make_optimizer = lambda m: torch.optim.AdamW(m.parameters(), lr=0.1)
    for phase in ("optimizer_step", "train_step"):
        outcome, message = refused(target, phase, EAGER, skips)
        assert outcome is Outcome.WRONG_OUTPUT
        assert "the step of tokens.weight at [7] of axis 0" in message


# --- how results lie in memory -------------------------------------------------------------------


def test_other_strides_of_an_output_are_said() -> None:
    """``view`` of it would raise where that of eager's does not."""
    lie = changed(lambda y: y.t().contiguous().t())
    notes = judged(a_target(lambda: nn.Linear(8, 6), batch(4, 8)), lie=lie).notes
    said = "['outputs'] has strides (1, 4) where eager's has (6, 1): where view() fails"
    assert any(said in note for note in notes)
    assert not judged(a_target(lambda: nn.Linear(8, 6), batch(4, 8))).notes


def test_a_layout_for_channels_that_reaches_the_outputs_is_said() -> None:
    def features() -> nn.Module:
        return nn.Conv2d(3, 8, 3)

    config = CompileConfig("aot_eager", memory_format="channels_last")
    notes = judged(a_target(features, batch(2, 3, 6, 6)), config=config).notes
    assert any("where eager's has" in note and "reshape()" in note for note in notes)


def test_an_output_that_shares_memory_with_an_input_is_found() -> None:
    """Whoever writes to the one would change the other."""
    target = a_target(lambda: Layer(lambda y, x: (y, x[:, :4] * 1.0)), batch(4, 8))

    def lie(side: Side) -> None:
        right = side.call
        side.call = lambda: (right()[0], side.inputs[0][:, :4])

    outcome, message = refused(target, "forward", EAGER, lie)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "share memory, and eager's do not" in message


def test_two_outputs_that_share_memory_are_found_and_the_reverse_is_said() -> None:
    apart_ = a_target(lambda: Layer(lambda y, x: (y, y[:, 0] * 1.0)), batch(4, 8))
    lie = changed(lambda y: (y[0], y[0][:, 0]))
    assert "share memory" in refused(apart_, "forward", EAGER, lie)[1]
    shared = a_target(lambda: Layer(lambda y, x: (y, y[:, 0])), batch(4, 8))
    assert not judged(shared).notes
    lie = changed(lambda y: (y[0], y[1].clone()))
    notes = judged(shared, "forward", EAGER, lie).notes
    assert any("share memory in eager mode and not here" in note for note in notes)


# --- inputs that are objects ---------------------------------------------------------------------


@dataclasses.dataclass
class Cache:
    """Keys of earlier tokens, as generating models keep them."""

    keys: list[torch.Tensor]
    seen: int = 0


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        keys = self.linear(x)
        cache.keys[0][:, 1] = keys
        return keys + cache.keys[0].sum(1)


def caching() -> Target:
    return a_target(Caching, lambda: (torch.randn(4, 8), Cache([torch.randn(4, 3, 8)])))


def test_a_write_to_a_cache_is_compared_and_one_that_is_dropped_is_found() -> None:
    (note,) = judged(caching(), config=CompileConfig("eager")).notes
    assert note.startswith("a call changes its inputs in place ([1].keys[0])")

    def drops(side: Side) -> None:
        right = side.call

        def call() -> Any:
            kept = side.inputs[1].keys[0].clone()
            output = right()
            side.inputs[1].keys[0].copy_(kept)
            return output

        side.call = call

    outcome, message = refused(caching(), "forward", EAGER, drops)
    assert outcome is Outcome.WRONG_OUTPUT
    assert "['inputs'][1].keys[0]" in message


def test_inputs_inside_objects_are_copied_moved_and_shortened() -> None:
    first = (torch.randn(4, 8), Cache([torch.randn(4, 3, 8)], 5))
    copied = trees.copy_inputs(first)
    assert copied[1] is not first[1]
    assert copied[1].keys[0] is not first[1].keys[0]
    assert torch.equal(copied[1].keys[0], first[1].keys[0])
    assert copied[1].seen == 5
    copied[1].keys.append(torch.ones(1))
    assert len(first[1].keys) == 1
    other = (torch.randn(9, 8), Cache([torch.randn(9, 3, 8)], 5))
    shorter = between((first, other))
    assert shorter is not None
    assert shorter[0].shape[0] == shorter[1].keys[0].shape[0] == 6
    target = dataclasses.replace(
        a_target(Caching, lambda: first), device=torch.device("meta")
    )
    moved = target.inputs("forward", None)
    assert moved[1].keys[0].device.type == "meta"
    assert first[1].keys[0].device.type == "cpu"


# --- sizes that no call has ----------------------------------------------------------------------


class Graph(nn.Module):
    """Sums the features of neighbours, which its second input names by index."""

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, edges[0], x[edges[1]])


def test_made_up_inputs_whose_indices_point_outside_refuse_nothing() -> None:
    def inputs(nodes: int) -> Any:
        return torch.randn(nodes, 4), torch.randint(nodes - 1, nodes, (2, 2 * nodes))

    calls = Calls((inputs(12), inputs(20)))
    target = a_target(Graph, lambda: calls)
    reference = Reference(target, "forward", (calls, calls), 0, [])
    side = make_side(target, "forward", None, CompileConfig("eager"))
    subject = called(reference, side)
    checks.first_calls(reference, subject)
    made = between(calls)
    assert int(made[1].max()) >= made[0].shape[0]
    checks.at_a_size_between(reference, subject, made)
    assert any("eager fails: IndexError" in note for note in subject.notes)


def test_made_up_inputs_are_tried_on_the_cpu_before_a_gpu_sees_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There a wrong index ends the process; where all fit for sure, nothing is tried."""
    calls = Calls(((torch.randn(8, 4), torch.full((2, 3), 19)),) * 2)
    target = a_target(Graph, lambda: calls)
    reference = Reference.__new__(Reference)
    reference.target, reference.name, reference.seed = target, "forward", 0
    monkeypatch.setattr(target, "device", torch.device("cuda"))
    assert "IndexError" in checks._why_unfit(reference, calls[0])
    fits = torch.randn(8, 4), torch.full((2, 3), 5)
    assert checks._why_unfit(reference, fits) == ""
    assert not checks._indexes_nothing(fits)
    small = torch.randn(8, 4), torch.full((2, 3), 1)
    assert checks._indexes_nothing(small)


# --- memory --------------------------------------------------------------------------------------


def test_the_memory_of_the_gpu_is_asked_on_which_the_tensors_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnGpu:
        """A tensor of a second GPU."""

        is_cuda, device = True, torch.device("cuda:1")

        def numel(self) -> int:
            return 100

        def element_size(self) -> int:
            return 4

        def detach(self) -> OnGpu:
            return self

        def clone(self) -> str:
            return "cuda:1"

    monkeypatch.setattr(trees, "_on_host", lambda x: "cpu")
    free = {"cuda:1": 1000, "cuda:0": 10**9}
    asked: list[Any] = []

    def mem_get_info(device: Any = "cuda:0") -> tuple[int, int]:
        asked.append(device)
        return free[str(device)], 10**9

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    assert trees.copies([OnGpu()]) == ["cpu"]  # type: ignore[list-item]
    free["cuda:1"] = 10**9
    assert trees.copies([OnGpu()]) == ["cuda:1"]  # type: ignore[list-item]
    assert asked == [torch.device("cuda:1")] * 2


class Codes(nn.Module):
    """It gives the nearest of some codes for each row: in bfloat16, rounding chooses others."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.codes = nn.Linear(16, 32), nn.Embedding(64, 32)
        self.outer = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        far = torch.cdist(self.inner(x).float(), self.codes.weight.float())
        return self.outer(self.codes(far.argmin(-1)))


@pytest.mark.parametrize("rows", [320, 2304])
def test_a_wrong_row_is_found_where_rounding_chooses_other_rows(rows: int) -> None:
    def zeroed(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[7] = 0
        return y

    made = a_target(lambda: Codes().bfloat16(), batch(rows, 16, dtype=torch.bfloat16))
    judged(made, "forward", EAGER)
    _, message = refused(made, "forward", EAGER, changed(zeroed))
    assert "at [7] of axis 0" in message
