"""Transforms functions before Dynamo sees them, and the FX graphs that it captures."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

__all__ = [
    "arguments_held",
    "attributes_lifted",
    "is_weight",
    "with_own_code",
]


def is_weight(value: Any) -> bool:
    """Whether it is a parameter or buffer that counts versions (not made in inference mode)."""
    is_static = isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
    return is_static and not value.is_inference()


def attributes_lifted(
    graph: torch.fx.GraphModule, inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """A copy of a graph in which the tensors that it holds are its last arguments.

    Dynamo holds a tensor as an attribute where it guards on its identity, as for a compiled
    optimizer. An exporter would treat its value as a constant.

    Args:
        graph: from Dynamo; not changed.
        inputs: the inputs of the graph.

    Returns:
        The new graph, and the tensors to append to its inputs.
    """
    held: dict[str, torch.Tensor] = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(graph)
        if isinstance(value, torch.Tensor):
            held[node.target] = value
    if not held:
        return graph, []
    copied = copy.deepcopy(graph.graph)
    after = next(n for n in copied.nodes if n.op != "placeholder")
    given: dict[str, torch.fx.Node] = {}
    with copied.inserting_before(after):
        for number, (target, value) in enumerate(held.items(), len(inputs)):
            given[target] = copied.placeholder(f"held_{number}")
            given[target].meta["example_value"] = value
    for node in list(copied.find_nodes(op="get_attr")):
        if node.target in given:
            node.replace_all_uses_with(given[node.target])
            copied.erase_node(node)
    return torch.fx.GraphModule(graph, copied), list(held.values())


def arguments_held(
    graph: torch.fx.GraphModule, args: Sequence[Any], chosen: Collection[int]
) -> torch.fx.GraphModule:
    """A copy of a graph in which some arguments are parameters and buffers of the graph.

    Args:
        graph: from Dynamo; not changed.
        args: its arguments.
        chosen: places of the tensors among them to convert.
    """
    made = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    given = made.graph.find_nodes(op="placeholder")
    for place in chosen:
        name, value = f"constant_{place}", args[place]
        if isinstance(value, torch.nn.Parameter):
            made.register_parameter(name, value)
        else:
            made.register_buffer(name, value)
        with made.graph.inserting_after(given[-1]):
            node = made.graph.get_attr(name)
        node.meta.update(given[place].meta)
        given[place].replace_all_uses_with(node)
        made.graph.erase_node(given[place])
    made.recompile()
    return made


def with_own_code(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function in a wrapper with a new code object.

    Dynamo caches compiled code per code object, with a recompile limit for each. It also skips
    methods of ``torch.nn`` and ``Optimizer.step`` unless another function calls them.
    """

    def own(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code: CodeType = own.__code__.replace(co_name=name)
    return FunctionType(code, globals(), name, None, own.__closure__)
