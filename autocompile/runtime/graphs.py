"""Weights in the graphs that Dynamo captures, when they change, and functions it caches apart."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def is_weight(value: Any) -> bool:
    """Whether it is a parameter or buffer that counts versions (not made in inference mode)."""
    is_static = isinstance(value, torch.nn.Parameter) or hasattr(
        value, "_dynamo_static_input_type"
    )
    return is_static and not value.is_inference()


class FrozenWeights:
    """Arguments of a graph that are constants of what it was compiled to, and whether they changed.

    A change shows as another address or version counter. Writes through ``.data`` and by kernels of
    other libraries are missed.
    """

    def __init__(self, args: Sequence[Any], places: Iterable[int]) -> None:
        # Before the weights are read: a change in between shows at the next call.
        self._stamps = [(i, args[i].data_ptr(), args[i]._version) for i in places]
        # While the weights live, their addresses are not reused.
        self._weights = [args[i].detach() for i, *_ in self._stamps]

    def are_stale(self, args: Sequence[Any]) -> bool:
        """Whether one has changed or is another tensor."""
        for i, pointer, version in self._stamps:
            if args[i]._version != version or args[i].data_ptr() != pointer:
                return True
        return False


@functools.cache
def count_fused_steps() -> None:
    """Make the steps of all fused optimizers count as writes to their weights, from now on.

    Their kernels do not count (torch 2.13).
    """
    register_optimizer_step_post_hook(_after_step)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _count_writes(optimizer: torch.optim.Optimizer) -> None:
    # Tracing it would drop the side effect.
    for group in optimizer.param_groups:
        if group.get("fused"):
            written = [
                p
                for p in group["params"]
                if p.grad is not None and not p.is_inference()
            ]
            torch.autograd.graph.increment_version(written)


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    # The step may be compiled: calling a disabled function for all would break its graph.
    if any(group.get("fused") for group in optimizer.param_groups):
        _count_writes(optimizer)


def attributes_lifted(
    graph: torch.fx.GraphModule, inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """A copy of a graph in which the tensors that it holds are arguments after these inputs.

    Dynamo holds a tensor as an attribute where it guards on its identity, as for a compiled
    optimizer. An exporter would treat its value as a constant.
    """
    tensors: dict[str, torch.Tensor] = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(graph)
        if isinstance(value, torch.Tensor):
            tensors[node.target] = value
    if not tensors:
        return graph, []
    copied = copy.deepcopy(graph.graph)
    after = next(n for n in copied.nodes if n.op != "placeholder")
    given: dict[str, torch.fx.Node] = {}
    with copied.inserting_before(after):
        for number, (target, value) in enumerate(tensors.items(), len(inputs)):
            given[target] = copied.placeholder(f"attribute_{number}")
            given[target].meta["example_value"] = value
    for node in list(copied.find_nodes(op="get_attr")):
        if node.target in given:
            node.replace_all_uses_with(given[node.target])
            copied.erase_node(node)
    return torch.fx.GraphModule(graph, copied), list(tensors.values())


def compiled(
    function: Callable[..., Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """``torch.compile`` with arguments that are used again: it removes entries from the options."""
    copied: Any = {k: dict(v) if k == "options" else v for k, v in kwargs.items()}
    made: Callable[..., Any] = torch.compile(function, **copied)
    return made


def with_own_code(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function in a wrapper with a new code object.

    Dynamo caches compiled code per code object, with a recompile limit for each. It also skips
    methods of ``torch.nn`` and ``Optimizer.step`` unless another function calls them.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return FunctionType(
        wrapper.__code__.replace(co_name=name),
        globals(),
        name,
        None,
        wrapper.__closure__,
    )
