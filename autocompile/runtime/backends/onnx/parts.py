"""Splits a graph: operators that a runtime cannot run stay in torch."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx import Node
from torch.fx.passes.split_module import split_module

from autocompile.runtime.backends.onnx.model import (
    Args,
    Graph,
    Unsupported,
    no_random_numbers_spent,
    writes_in_place,
)
from autocompile.runtime.backends.onnx.session import Session

__all__ = ["in_parts", "is_call"]

_MOST_LEFT_TO_TORCH = 8  # operators of one graph; with more it would not be faster


def is_call(node: Node) -> bool:
    """Whether a node computes something."""
    return node.op.startswith("call")


def in_parts(
    graph: Graph, inputs: Args, kind: type[Session], baked: bool, why: Unsupported
) -> Callable[..., Any]:
    """Run unsupported operators in torch, and the graphs between them in sessions of a kind.

    Raises:
        RuntimeError: too many or all operators are unsupported.
    """
    nothing = f"{kind.runtime} can do nothing with this graph: "
    if writes_in_place(graph, inputs):
        # The runtime returns copies: a write to one would be lost.
        raise RuntimeError(f"{nothing}it writes in place, and {why}")
    _open_tuples(graph)
    calls = [node for node in graph.graph.nodes if _made_by(node) is node and is_call(node)]
    left = _unsupported(graph, inputs, calls, kind)
    if not left:
        raise RuntimeError(f"{nothing}{why}")
    if len(left) > min(_MOST_LEFT_TO_TORCH, len(calls) - 1):
        raise RuntimeError(f"{nothing}{len(left)} of {len(calls)} operators are refused: {why}")
    whole, parts = _split(graph, inputs, left)
    try:
        for name, part, args, is_left in parts:
            if not is_left:
                whole.delete_submodule(name)
                setattr(whole, name, kind(part, args, baked))
    except Unsupported as error:  # each operator can be exported alone, but not together
        raise RuntimeError(f"{nothing}{error}") from None
    names = sorted({getattr(n.target, "__name__", str(n.target)) for n in left})
    warnings.warn(
        f"{kind.backend} leaves {', '.join(names)} to torch, "
        f"in a graph of {len(calls)} operators: {why}",
        stacklevel=2,
    )
    return whole.forward


def _unsupported(graph: Graph, inputs: Args, calls: list[Node], kind: type[Session]) -> set[Node]:
    """The operators that cannot be exported, found by bisection.

    An operator that was refused once counts as refused everywhere.
    """
    found: set[Node] = set()
    ranges = [calls]
    while ranges and len(found) <= _MOST_LEFT_TO_TORCH:
        some = [node for node in ranges.pop() if node not in found]
        if not some or _can_export(graph, inputs, some, kind):
            continue
        if len(some) == 1:
            found |= {node for node in calls if node.target == some[0].target}
            continue
        middle = len(some) // 2
        ranges += [some[:middle], some[middle:]]
    return found


def _can_export(graph: Graph, inputs: Args, chosen: list[Node], kind: type[Session]) -> bool:
    try:
        for _, part, args, is_chosen in _split(graph, inputs, chosen)[1]:
            if is_chosen:
                kind.export(part, args)
    except Unsupported:
        return False
    return True


def _split(
    graph: Graph, inputs: Args, chosen: Collection[Node]
) -> tuple[Graph, list[tuple[str, Graph, Args, bool]]]:
    """Split a graph at the borders between chosen operators and others.

    Returns:
        A graph that calls the parts in order; name, graph and arguments of each part, and whether
        its operators are chosen.
    """
    number, before, part = 0, False, {}
    for node in graph.graph.nodes:
        if is_call(node):
            is_chosen = _made_by(node) in chosen
            number += is_chosen != before
            part[node], before = number, is_chosen
    whole = split_module(graph, graph, lambda node: part[node], keep_original_order=True)
    # Parts of chosen operators have odd numbers.
    given: dict[str, Args] = {}

    class Watching(torch.fx.Interpreter):
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            given[str(target)] = args
            return super().call_module(target, args, kwargs)

    # Nothing is written in place, so no copies are needed, and parts get the real weights.
    with torch.no_grad(), no_random_numbers_spent(inputs):
        Watching(whole).run(*inputs)
    return whole, [
        (name, getattr(whole, name), args, int(name.removeprefix("submod_")) % 2 == 1)
        for name, args in given.items()
    ]


def _open_tuples(graph: Graph) -> None:
    """Move each ``getitem`` of a tuple directly after the node that returns the tuple."""
    for node in list(graph.graph.nodes):
        if (maker := _made_by(node)) is not node:
            last = maker
            while last.next is not node and _made_by(last.next) is maker:
                last = last.next
            last.append(node)
    graph.recompile()


def _made_by(node: Node) -> Node:
    """The node that returns the tuple which this node takes an item of; else the node itself."""
    while node.target is operator.getitem:
        maker = node.args[0]
        if not isinstance(maker, Node) or not is_call(maker):
            break
        if isinstance(maker.meta.get("example_value"), torch.Tensor):
            break
        node = maker
    return node
