"""Regions: which blocks of a model are repeated, and that one artifact serves all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch._dynamo
from torch import nn

from autocompile.runtime.compiling import (
    blocks_in_words,
    compile_blocks,
    repeated_blocks,
)

# With gradients, what comes out of the first block is another kind of input.
pytestmark = pytest.mark.usefixtures("_fresh_dynamo")


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


class Of(nn.Module):
    """Three blocks in whatever holds them, and one layer of another kind."""

    def __init__(
        self, block: Callable[[], nn.Module], holder: str = "attributes"
    ) -> None:
        super().__init__()
        blocks = {f"block{i}": block() for i in range(3)}
        holders: dict[str, Callable[[], dict[str, nn.Module]]] = {
            "list": lambda: {"all": nn.ModuleList(blocks.values())},
            "sequence": lambda: {"all": nn.Sequential(*blocks.values())},
            "dict": lambda: {"all": nn.ModuleDict(blocks)},
            "attributes": lambda: blocks,
        }
        for name, module in {**holders[holder](), "head": nn.Linear(8, 3)}.items():
            setattr(self, name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            inner = child.values() if isinstance(child, nn.ModuleDict) else child
            for block in (
                inner if isinstance(child, (nn.ModuleDict, nn.ModuleList)) else [child]
            ):
                x = block(x)
        return x


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()


def sequence() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


class Counting:
    """A backend that notes the types of the inputs of each graph."""

    def __init__(self) -> None:
        self.graphs: list[list[type]] = []

    def __call__(
        self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]
    ) -> object:
        self.graphs.append([type(i) for i in inputs])
        return graph.forward


@pytest.mark.parametrize("holder", ["list", "sequence", "dict", "attributes"])
def test_blocks_are_found_wherever_they_stand_and_share_a_graph(holder: str) -> None:
    model, counting, x = Of(Block, holder), Counting(), torch.randn(4, 8)
    want = model(x)
    assert blocks_in_words(model) == "3 Block"
    compile_blocks(repeated_blocks(model), {"backend": counting})
    torch.testing.assert_close(model(x), want)
    assert len(counting.graphs) == 1


def test_the_largest_blocks_of_equal_shapes_are_taken() -> None:
    shared = Block()
    layers = nn.TransformerEncoder(encoder_layer(), 4)
    assert repeated_blocks(layers) == list(layers.layers)
    for blocks, count in (
        ([Block(8), Block(16)], 0),
        ([Block(8), Block(16), Block(8)], 2),
        ([shared, nn.ReLU(), shared], 0),  # one in two places
        ([nn.Linear(8, 8) for _ in range(4)], 0),
        ([Block()], 0),
        ([torch.jit.script(Block()) for _ in range(3)], 0),  # compiled already
    ):
        assert len(repeated_blocks(nn.Sequential(*blocks))) == count


@pytest.mark.parametrize("make", [encoder_layer, sequence])
def test_blocks_of_torchs_own_classes_are_compiled_too(
    make: Callable[[], nn.Module],
) -> None:
    """``Module.compile`` does nothing for them."""
    model, counting, x = Of(make), Counting(), torch.randn(4, 5, 8)
    want, blocks = model(x), repeated_blocks(model)
    assert len(blocks) == 3
    compile_blocks(blocks, {"backend": counting, "fullgraph": True})
    torch.testing.assert_close(model(x), want)
    for weight in model.parameters():  # new weights count, and copies are as they were
        weight.mul_(1.5)
    alone = copy.deepcopy(model)
    assert not any(block._compiled_call_impl for block in alone.children())
    torch.testing.assert_close(model(x), alone(x))
    assert len(counting.graphs) == 1


def test_each_structure_of_torchs_own_classes_is_compiled_for_itself() -> None:
    """Dynamo counts recompilations of one function, and what differs between them as changing."""
    one, counting = nn.ReLU(), Counting()
    kinds = [[nn.Linear(8, 8), *[one] * count] for count in range(1, 11)]
    model = nn.Sequential(*(nn.Sequential(*kind) for kind in kinds for _ in range(2)))
    blocks = repeated_blocks(model)
    assert len(blocks) == 20
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        compile_blocks(blocks, {"backend": counting, "fullgraph": True})
        model(torch.randn(4, 8))
    assert len(counting.graphs) == 10
    layers = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True).eval()
    counting.graphs.clear()
    compile_blocks(repeated_blocks(layers), {"backend": counting})
    layers(torch.randn(2, 10, 16), torch.randn(2, 7, 16))
    assert len(counting.graphs) == 2
    assert torch.SymInt not in {
        kind for kinds in counting.graphs for kind in kinds
    }  # may change
