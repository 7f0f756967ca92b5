"""The backend ``openvino_onnx`` beyond the contract: 64-bit integers, which it has in 32 bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo

EMBED = torch.nn.Embedding(97, 4)
IDS = torch.tensor([[1, 2, 3, 40_000, 5_000_000]])
LARGE = torch.tensor([1, 2**40 + 1])


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("function", "x", "operator"),
    [
        (lambda x: EMBED((x * 1_000_003) % 97).tanh(), IDS, "mod, mul"),
        (lambda x: (x != 2**40 + 1).float().tanh(), LARGE, "ne"),
        (lambda x: (x.float() / 3).tanh(), LARGE, "float"),
        (lambda x: EMBED(x.pow(5) % 97).tanh(), IDS, "mod, pow"),
    ],
)
def test_what_may_need_64_bits_is_left_to_torch(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, operator: str
) -> None:
    compiled = torch.compile(function, backend="openvino_onnx")
    small = torch.ones_like(x)  # with which nothing overflows
    with pytest.warns(UserWarning, match=f"leaves {operator} to torch"):
        torch.testing.assert_close(compiled(small), function(small))
    torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.long().topk(2).values * 1000).float() / 3,
        lambda x: (x.long().sort().values * 1000).float() / 3,
        lambda x: torch.zeros(5, dtype=torch.int64).scatter_add(0, x.long() * 0, x.long()) / 3,
    ],
)
def test_values_of_32_bits_may_become_ones_of_64(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    compiled = torch.compile(function, backend="openvino_onnx")
    x = torch.full((5,), 2**31 - 1, dtype=torch.int32)
    with pytest.warns(UserWarning, match="of 64-bit integers in 32 bits"):
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize(
    "function", [lambda x: x + 1, lambda x: x.view(1, -1), lambda x: x.sum(), lambda x: x.cumsum(0)]
)
def test_a_graph_of_nothing_else_is_refused_in_words(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    compiled = torch.compile(function, backend="openvino_onnx")
    with pytest.raises(Exception, match=r"in 32 bits|OpenVINO keeps 32"):
        compiled(torch.ones_like(LARGE))


def attends(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[1])
    distances = (places[:, None] - places[None]).abs() + 1
    return EMBED(x[:, 1:]).sum(1) + EMBED(distances).mean((0, 1))


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (attends, IDS % 97),
        (lambda x: (x > 0).sum(-1), torch.randn(3, 9)),
        (lambda x: x.argmax(-1) + 1, torch.randn(3, 9)),
        (lambda x: x.gather(1, x.argsort(1)), torch.randn(3, 9)),
    ],
)
def test_indices_and_counts_are_computed_by_openvino(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> None:
    compiled = torch.compile(function, backend="openvino_onnx")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="openvino_onnx leaves")
        torch.testing.assert_close(compiled(x), function(x))
