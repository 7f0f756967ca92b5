"""What compiled functions do to the process, and what they do where they fail half-way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends import registry

from autocompile.runtime.applying import apply_config, apply_to_optimizer
from autocompile.settings.config import CompileConfig

THREADS = 3  # none that a machine of the tests has by itself


class _Failing(RuntimeError):
    """Raised in a backward pass."""


def _raise(gradient: torch.Tensor) -> None:
    raise _Failing


def test_a_backward_pass_that_fails_leaves_the_threads_to_the_next_call() -> None:
    before = torch.get_num_threads()
    assert before != THREADS
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    apply_config(model, "train_step", CompileConfig("aot_eager", threads=THREADS))
    x = torch.randn(2, 4)
    loss, handle = model(x).sum(), model[0].weight.register_hook(_raise)
    with pytest.raises(_Failing):
        loss.backward()
    assert torch.get_num_threads() == THREADS, "or nothing was left behind"
    handle.remove()
    model(x)
    assert torch.get_num_threads() == before
    model(x).sum().backward()
    assert torch.get_num_threads() == before


def _broken_in_its_second_graph(graph: Any, inputs: Any) -> Any:
    """A compiler whose second graph fails when it runs."""
    _broken_in_its_second_graph.graphs += 1  # type: ignore[attr-defined]
    if _broken_in_its_second_graph.graphs > 1:  # type: ignore[attr-defined]
        return _raise
    return graph.forward


def test_half_of_an_optimizers_step_is_not_made_again_in_eager_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _broken_in_its_second_graph.graphs = 0  # type: ignore[attr-defined]

    class InTwoParts(torch.optim.Optimizer):
        """Steps its two parameters in a graph each."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            first, second = (group["params"][0] for group in self.param_groups)
            first.sub_(first.grad)
            torch._dynamo.graph_break()
            second.sub_(second.grad)

    model = nn.ModuleList([nn.Linear(2, 1, bias=False) for _ in range(2)])
    optimizer = InTwoParts([{"params": [*each.parameters()]} for each in model])
    for p in model.parameters():
        p.data.fill_(5.0)
        p.grad = torch.ones_like(p)
    torch._dynamo.reset()
    monkeypatch.setitem(registry._BACKENDS, "broken_later", None)
    monkeypatch.setitem(
        registry._COMPILER_FNS, "broken_later", _broken_in_its_second_graph
    )
    apply_to_optimizer(optimizer, CompileConfig("broken_later"), or_eager=True)
    with pytest.raises(_Failing):
        optimizer.step()
    first = next(model.parameters())
    assert first.tolist() == [[4.0, 4.0]], "it was stepped once"
