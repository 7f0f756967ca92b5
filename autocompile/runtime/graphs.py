"""What Dynamo is given, and which tensors of the graph that it captures are inputs or constants."""

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
    "made_by",
    "numbers_given",
    "open_tuples",
    "with_own_code",
]


def is_weight(value: Any) -> bool:
    """A parameter, or a buffer of a module; one made under inference_mode counts no versions."""
    is_static = isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
    return is_static and not value.is_inference()


def attributes_lifted(
    graph: torch.fx.GraphModule, inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The same with the tensors that it holds as its last arguments.

    Dynamo puts a tensor into the graph itself where it guards on its identity: whatever a compiled
    optimizer steps, for one. An exporter would take its value for a constant.

    Args:
        graph: from Dynamo; it stays as it is.
        inputs: as many as the graph has.

    Returns:
        The graph, and the tensors to call it with after its inputs.
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
    with copied.inserting_before(after):  # which may be one of those that go
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
    """The same with the arguments at these places as parameters and buffers of its own.

    Args:
        graph: from Dynamo; it stays as it is.
        args: what it is called with.
        chosen: places of tensors among them.
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


def numbers_given(graph: torch.fx.GraphModule, places: Collection[int]) -> torch.fx.GraphModule:
    """The same for arguments of which these are numbers, and not tensors to read them from.

    Args:
        graph: from Dynamo; it stays as it is.
        places: of arguments that are read and nothing else.
    """
    made = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    given = made.graph.find_nodes(op="placeholder")
    for place in places:
        for node in list(given[place].users):
            node.replace_all_uses_with(given[place])
            made.graph.erase_node(node)
    made.recompile()
    return made


def open_tuples(graph: torch.fx.GraphModule) -> None:
    """Move whatever takes an item of a tuple right behind what makes the tuple."""
    for node in list(graph.graph.nodes):
        if (maker := made_by(node)) is not node:
            last = maker
            while last.next is not node and made_by(last.next) is maker:
                last = last.next
            last.append(node)
    graph.recompile()


def made_by(node: torch.fx.Node) -> torch.fx.Node:
    """What makes the tuple of which this is an item; the node itself if it is none."""
    while node.target is operator.getitem:
        maker = node.args[0]
        if not isinstance(maker, torch.fx.Node) or not maker.op.startswith("call"):
            break
        if isinstance(maker.meta.get("example_value"), torch.Tensor):
            break
        node = maker
    return node


def with_own_code(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same as a function that Dynamo has never seen.

    What it compiles hangs on a code object, with a limit for each; and it passes over methods of
    ``torch.nn`` and ``Optimizer.step`` where it does not meet them within another function.
    """

    def own(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    code: CodeType = own.__code__.replace(co_name=name)
    return FunctionType(code, globals(), name, None, own.__closure__)
