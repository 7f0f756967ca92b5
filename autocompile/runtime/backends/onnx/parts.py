"""Splits a graph: operators that a runtime cannot run stay in torch."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.passes.split_module import split_module

from autocompile.runtime.backends.onnx.model import (
    Exported,
    Unsupported,
    export,
    no_random_numbers_spent,
    writes_in_place,
)
from autocompile.runtime.backends.onnx.session import Session

__all__ = ["Way", "in_parts", "is_call"]

_MOST_LEFT_TO_TORCH = 8  # operators of one graph; with more it would not be faster


@dataclass(frozen=True)
class Way:
    """The kind of session, and whether the weights are constants."""

    kind: type[Session]
    baked: bool

    def export(self, graph: torch.fx.GraphModule, args: Sequence[Any]) -> Exported:
        exported = export(graph, args)
        self.kind.demand(exported, args)
        return exported

    def session(self, graph: torch.fx.GraphModule, args: Sequence[Any]) -> Session:
        return self.kind(self.export(graph, args), args, self.baked)

    def nothing(self, why: object) -> RuntimeError:
        return RuntimeError(f"{self.kind.runtime} can do nothing with this graph: {why}")


def is_call(node: torch.fx.Node) -> bool:
    """Whether a node computes something."""
    return node.op.startswith("call")


def in_parts(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], way: Way, why: Unsupported
) -> Callable[..., Any]:
    """Run unsupported operators in torch, and the graphs between them in the runtime.

    Raises:
        RuntimeError: too many or all operators are unsupported.
    """
    if writes_in_place(graph, inputs):
        # The runtime returns copies: a write to one would be lost.
        raise way.nothing(f"it writes in place, and {why}") from None
    _open_tuples(graph)
    calls = [node for node in graph.graph.nodes if _made_by(node) is node and is_call(node)]
    left = _unsupported(graph, inputs, calls, way)
    if not left or len(left) > min(_MOST_LEFT_TO_TORCH, len(calls) - 1):
        count = f"{len(left)} of {len(calls)} operators are refused: " if left else ""
        raise way.nothing(f"{count}{why}") from None
    parts = _Parts(graph, inputs, left)
    try:
        for name, part, given in parts.items(chosen=False):
            setattr(parts.whole, name, _Module(way.session(part, given)))
    except Unsupported as error:  # each operator can be exported alone, but not together
        raise way.nothing(error) from None
    names = sorted({getattr(n.target, "__name__", str(n.target)) for n in left})
    warnings.warn(
        f"{way.kind.backend} leaves {', '.join(names)} to torch, "
        f"in a graph of {len(calls)} operators: {why}",
        stacklevel=2,
    )
    return parts.whole.forward


class _Module(torch.nn.Module):
    """A session as a module, which a split graph can call."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def forward(self, *args: Any) -> Any:
        return self._session(*args)


class _Parts:
    """A graph split at the borders between ``chosen`` operators and others.

    Attributes:
        whole: calls the parts in order.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        inputs: Sequence[Any],
        chosen: Collection[torch.fx.Node],
    ) -> None:
        number, before, part = 0, None, {}
        for node in graph.graph.nodes:
            if is_call(node):
                is_chosen = _made_by(node) in chosen
                number += before is not None and is_chosen != before
                part[node], before = number, is_chosen
        self._chosen = {f"submod_{part[node]}" for node in chosen}
        self.whole: torch.fx.GraphModule = split_module(
            graph, graph, lambda node: part[node], keep_original_order=True
        )
        self._given: dict[str, tuple[Any, ...]] = {}
        watching = _Watching(self.whole, self._given)
        # Nothing is written in place, so no copies are needed, and parts get the real weights.
        with torch.no_grad(), no_random_numbers_spent(inputs):
            watching.run(*inputs)

    def items(self, chosen: bool) -> list[tuple[str, torch.fx.GraphModule, tuple[Any, ...]]]:
        """(name, part, arguments) of the parts of chosen operators, or of the others."""
        names = [name for name in self._given if (name in self._chosen) == chosen]
        return [(name, getattr(self.whole, name), self._given[name]) for name in names]


class _Watching(torch.fx.Interpreter):
    """Runs a graph and records the arguments of each part."""

    def __init__(self, whole: torch.fx.GraphModule, given: dict[str, tuple[Any, ...]]) -> None:
        super().__init__(whole)
        self._given = given

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Record the arguments, then call."""
        self._given[str(target)] = args
        return super().call_module(target, args, kwargs)


def _unsupported(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], calls: list[torch.fx.Node], way: Way
) -> set[torch.fx.Node]:
    """The operators that cannot be exported, found by bisection.

    An operator that was refused once counts as refused everywhere.
    """
    found: set[torch.fx.Node] = set()
    ranges = [calls]
    while ranges and len(found) <= _MOST_LEFT_TO_TORCH:
        some = [node for node in ranges.pop() if node not in found]
        if not some or _can_export(graph, inputs, some, way):
            continue
        if len(some) == 1:
            found |= {node for node in calls if node.target == some[0].target}
            continue
        middle = len(some) // 2
        ranges += [some[:middle], some[middle:]]
    return found


def _can_export(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], chosen: list[torch.fx.Node], way: Way
) -> bool:
    parts = _Parts(graph, inputs, chosen)
    try:
        for _, part, given in parts.items(chosen=True):
            way.export(part, given)
    except Unsupported:
        return False
    return True


def _open_tuples(graph: torch.fx.GraphModule) -> None:
    """Move each ``getitem`` of a tuple directly after the node that returns the tuple."""
    for node in list(graph.graph.nodes):
        if (maker := _made_by(node)) is not node:
            last = maker
            while last.next is not node and _made_by(last.next) is maker:
                last = last.next
            last.append(node)
    graph.recompile()


def _made_by(node: torch.fx.Node) -> torch.fx.Node:
    """The node that returns the tuple which this node takes an item of; else the node itself."""
    while node.target is operator.getitem:
        maker = node.args[0]
        if not isinstance(maker, torch.fx.Node) or not maker.op.startswith("call"):
            break
        if isinstance(maker.meta.get("example_value"), torch.Tensor):
            break
        node = maker
    return node
