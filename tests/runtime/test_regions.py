"""Regions: which blocks of a model are repeated, and that one artifact serves all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from torch import nn

from autocompile.runtime.regions import regions_of


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


class Of(nn.Module):
    """Blocks in whatever holds them."""

    def __init__(self, blocks: nn.Module | list[nn.Module]) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        if isinstance(blocks, nn.Module):
            self.blocks = blocks
        else:
            for i, block in enumerate(blocks):
                setattr(self, f"block{i}", block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.children():
            if isinstance(block, nn.ModuleDict):
                for each in block.values():
                    x = each(x)
            elif isinstance(block, nn.ModuleList):
                for each in block:
                    x = each(x)
            elif block is not self.head:
                x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()


def sequence() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


HOLDERS = {
    "list": lambda: nn.ModuleList(Block() for _ in range(3)),
    "sequence": lambda: nn.Sequential(*(Block() for _ in range(3))),
    "dict": lambda: nn.ModuleDict({f"b{i}": Block() for i in range(3)}),
    "attributes": lambda: [Block() for _ in range(3)],
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that notes the types of the inputs of each graph."""

    def __init__(self) -> None:
        self.graphs: list[list[type]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        self.graphs.append([type(i) for i in inputs])
        return graph.forward


@pytest.mark.parametrize("holder", HOLDERS)
def test_blocks_are_found_wherever_they_stand(holder: str) -> None:
    regions = regions_of(Of(HOLDERS[holder]()))
    assert len(regions) == 3
    assert regions.describe() == "3 Block"


def test_the_outermost_blocks_are_taken() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    regions = regions_of(nn.TransformerEncoder(layer, 4))
    assert [name for name, _ in regions.blocks] == [f"layers.{i}" for i in range(4)]


def test_blocks_of_other_shapes_are_other_blocks() -> None:
    assert len(regions_of(nn.Sequential(Block(8), Block(16)))) == 0
    assert len(regions_of(nn.Sequential(Block(8), Block(16), Block(8)))) == 2


def test_a_shared_block_counts_once() -> None:
    block = Block()
    assert len(regions_of(nn.Sequential(block, nn.ReLU(), block))) == 0


def test_single_layers_and_models_without_repetition_have_none() -> None:
    assert len(regions_of(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))))) == 0
    assert len(regions_of(Block())) == 0


@pytest.mark.parametrize("make", [encoder_layer, sequence])
def test_blocks_of_torchs_own_classes_are_compiled_too(make: Callable[[], nn.Module]) -> None:
    """``Module.compile`` does nothing for them."""
    model, counting = Of([make() for _ in range(3)]), Counting()
    x = torch.randn(4, 5, 8)
    with torch.no_grad():
        want = model(x)
        regions = regions_of(model)
        assert len(regions) == 3
        regions.compile(backend=counting, fullgraph=True)
        torch.testing.assert_close(model(x), want)
        assert len(counting.graphs) == 1
        for block in model.children():  # new weights count, and copies are as they were
            for weight in block.parameters():
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
    regions = regions_of(model)
    assert len(regions) == 20
    with torch.no_grad(), torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        regions.compile(backend=counting, fullgraph=True)
        model(torch.randn(4, 8))
    assert len(counting.graphs) == 10
    layers = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True).eval()
    counting.graphs.clear()
    with torch.no_grad():
        regions_of(layers).compile(backend=counting)
        layers(torch.randn(2, 10, 16), torch.randn(2, 7, 16))
    assert len(counting.graphs) == 2
    assert torch.SymInt not in {kind for kinds in counting.graphs for kind in kinds}  # may change


def test_scripts_are_no_blocks() -> None:
    scripts = [torch.jit.script(Block()) for _ in range(3)]
    assert len(regions_of(nn.Sequential(*scripts))) == 0


@pytest.mark.parametrize("holder", HOLDERS)
def test_one_graph_serves_all_blocks(holder: str) -> None:
    model, counting = Of(HOLDERS[holder]()), Counting()
    x = torch.randn(4, 8)
    with torch.no_grad():  # else what comes out of the first block is another kind of input
        want = model(x)
        regions_of(model).compile(backend=counting)
        torch.testing.assert_close(model(x), want)
    assert len(counting.graphs) == 1
