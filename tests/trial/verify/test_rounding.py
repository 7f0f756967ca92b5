"""What moves where eager is rounded otherwise: an activation that is nearly 0 may be turned."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autocompile.runtime import ranks
from autocompile.trial.verify.compare import Movement, compare
from autocompile.trial.verify.outputs import View
from autocompile.trial.verify.rounding import RoundOtherwise

ROWS, INPUTS, UNITS = 512, 64, 32
EPSILON = torch.finfo(torch.float32).eps


def _view(first: nn.Module, second: nn.Module, x: torch.Tensor) -> View:
    """Outputs and gradients of a step of a network with one activation."""
    parameters = [*first.parameters(), *second.parameters()]
    loss = second(first(x).flatten(1).relu()).square().mean()
    gradients = torch.autograd.grad(loss, parameters)
    named = {str(n): gradient for n, gradient in enumerate(gradients)}
    return {"outputs": loss.detach(), "gradients": named}


def _net(kind: str) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    if kind == "matrices":
        x = torch.randn(ROWS, INPUTS)
        return nn.Linear(INPUTS, UNITS), nn.Linear(UNITS, 1), x
    x = torch.randn(ROWS, 1, 8, 8)
    return nn.Conv2d(1, UNITS, 8), nn.Linear(UNITS, 1), x


@pytest.mark.parametrize("kind", ["matrices", "convolution"])
@pytest.mark.parametrize(("away", "is_right"), [(0.05, True), (50.0, False)])
def test_only_an_activation_that_rounding_may_turn_is_turned_by_rounding(
    kind: str, away: float, is_right: bool
) -> None:
    """One unit of one sample is so many roundings of its sum above 0, and then as many below."""
    first, second, x = _net(kind)
    unit, sample = 3, 7
    weight, bias = first.weight.data[unit], first.bias.data
    length = float(weight.norm() * x[sample].norm())
    step = away * EPSILON * length
    # The sample's sum is nearly 0 without a bias: one that is large would round what is left.
    bias[unit] = 0
    x[sample] -= weight.view_as(x[sample]) * (
        (weight.flatten() @ x[sample].flatten()) / weight.square().sum()
    )
    left = float(first(x).detach().flatten(1)[sample, unit])
    bias[unit] = step - left
    want = _view(first, second, x)
    bias[unit] = -step - left
    got = _view(first, second, x)
    bias[unit] = step - left
    movement = Movement()

    def moved(tries: int) -> Movement:
        while movement.tries < tries:
            with RoundOtherwise(movement.tries):
                movement.add(want, _view(first, second, x))
        return movement

    problem = compare(want, got, moved=moved)
    assert movement.tries, "nothing was turned"
    assert (problem is None) == is_right, problem


@pytest.mark.parametrize("kind", ["matrices", "convolution"])
def test_sums_of_zeros_and_infinities_stay(kind: str) -> None:
    x = torch.zeros(4, 1, 1, 12)
    x[0, 0, 0, 0], x[1, 0, 0, 0], x[2, 0, 0, 6] = 3e38, -torch.inf, 1.0
    filters = torch.ones(2, 1, 1, 3)

    def run() -> torch.Tensor:
        if kind == "convolution":
            return torch.nn.functional.conv2d(x, filters)
        return x.view(4, 12) @ torch.eye(12)[:, :3]

    want = run()
    with RoundOtherwise(0):
        got = run()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=0.0, equal_nan=True)


def test_a_convolution_of_no_samples_is_one() -> None:
    with RoundOtherwise(0):
        assert nn.Conv2d(1, 2, 3)(torch.randn(0, 1, 8, 8)).shape == (0, 2, 6, 6)


def test_of_a_tensor_that_is_split_between_ranks_the_own_part_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    monkeypatch.setattr(ranks, "_here", ranks.Ranks(0, 2))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        part = torch.rand(1000) + 2
        split = DTensor.from_local(part, init_device_mesh("cpu", (1,)), [Shard(0)])
        with RoundOtherwise(0):
            product = split * 3
        moved = (product.to_local() - part * 3).abs()
        assert 0.02 < float((moved > 0).double().mean()) < 0.1
        assert float(moved.max()) < 3e-6
    finally:
        dist.destroy_process_group()
