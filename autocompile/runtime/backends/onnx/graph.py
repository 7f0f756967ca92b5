"""Compiles a Dynamo graph to ONNX models; operators that a runtime cannot run stay in torch.

Options (``torch.compile(..., options={...})``):

``weights``
    ``"live"`` (default): parameters are inputs of the session, so every change takes effect.
    ``"baked"``: they are constants, which the runtime packs and folds. The session is rebuilt when
    a version counter shows a change; :mod:`autocompile.runtime.versions` lists what this misses.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch.fx.passes.split_module import split_module

from autocompile.runtime.backends.onnx.model import (
    Exported,
    Unsupported,
    export,
    no_random_numbers_spent,
    writes_in_place,
)
from autocompile.runtime.backends.onnx.session import Session
from autocompile.runtime.graphs import attributes_lifted, made_by, numbers_given, open_tuples

__all__ = ["compile_graph"]

_MOST_SESSIONS = 16  # of one graph with dynamic shapes; least recently used is dropped
_MOST_LEFT_TO_TORCH = 8  # operators of one graph; with more it would not be faster

Compiled = Callable[..., Any]


@dataclass(frozen=True)
class _Way:
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


def compile_graph(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    kind: type[Session],
    mode: str | None,
    options: Mapping[str, Any] | None,
) -> Compiled:
    """Compile a graph for a runtime; warns about operators that stay in torch.

    Args:
        graph: captured by Dynamo, with parameters as inputs.
        inputs: example inputs: tensors, and integers for symbolic shapes.
        kind: the runtime's session class.
        mode: must be None or "default".
        options: see the module.

    Raises:
        ValueError: a mode, or an unknown option.
        RuntimeError: gradients are required, or no part of the graph can be exported.
    """
    way = _Way(kind, _wants_baked(kind.backend, mode, options or {}))
    graph, held = attributes_lifted(graph, inputs)
    if not held:
        return _compiled(graph, inputs, way)
    made = _compiled(graph, [*inputs, *held], way)
    return lambda *args: made(*args, *held)


def _compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any], way: _Way) -> Compiled:
    """Compile a graph that holds no tensors as attributes."""
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    ):
        raise RuntimeError(
            f"the {way.kind.backend} backend computes no gradients: "
            "call the model under torch.no_grad()"
        )
    if not any(_is_call(node) for node in graph.graph.nodes):
        return graph.forward
    # With dynamic shapes, Dynamo captures one graph for all shapes.
    given = graph.graph.find_nodes(op="placeholder")
    changing = [i for i, n in enumerate(given) if _is_symbolic(n.meta.get("example_value"))]
    # And one for all values of a float, passed as a tensor that the graph reads with item().
    if numbers := [i for i, n in enumerate(given) if n.users and all(map(_is_read, n.users))]:
        graph = numbers_given(graph, numbers)
        changing = sorted({*changing, *numbers})
    if changing:
        return _ByShape(graph, changing, numbers, way)
    return _for_these(graph, inputs, way)


def _wants_baked(backend: str, mode: str | None, options: Mapping[str, Any]) -> bool:
    if mode not in (None, "default"):
        raise ValueError(f"the {backend} backend has no modes; {mode!r} was asked for")
    for name in options:
        if name != "weights":
            raise ValueError(f"the {backend} backend has no option {name!r}; it has: weights")
    weights = options.get("weights", "live")
    if weights not in ("live", "baked"):
        raise ValueError(f"weights={weights!r}: the {backend} backend knows 'live' and 'baked'")
    return bool(weights == "baked")


def _for_these(graph: torch.fx.GraphModule, args: Sequence[Any], way: _Way) -> Compiled:
    """Compile the graph for arguments of these shapes."""
    try:
        # The bound method: of an object Dynamo would copy the attributes, and keep old weights.
        return way.session(graph, args).__call__
    except Unsupported as error:
        return _in_parts(graph, args, way, error)


class _ByShape:
    """A graph with dynamic shapes or numbers: one session for each combination."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        changing: Sequence[int],
        numbers: Collection[int],
        way: _Way,
    ) -> None:
        self._graph, self._changing, self._way = graph, changing, way
        self._numbers = frozenset(numbers)
        self._made: OrderedDict[Any, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        if self._numbers:
            args = tuple(a.item() if i in self._numbers else a for i, a in enumerate(args))
        chosen = [args[i] for i in self._changing]
        key = tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in chosen)
        made = self._known(key)
        if made is None:
            # Both the exporter and Dynamo patch torch: one at a time.
            with compile_lock:
                made = self._known(key) or _for_these(self._graph, args, self._way)
                with self._lock:
                    self._made[key] = made
                    if len(self._made) > _MOST_SESSIONS:
                        self._made.popitem(last=False)
        return made(*args)

    def _known(self, key: Any) -> Compiled | None:
        with self._lock:
            made = self._made.get(key)
            if made is not None:
                self._made.move_to_end(key)
            return made


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return value is None or isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_read(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _is_call(node: torch.fx.Node) -> bool:
    return node.op.startswith("call")


def _in_parts(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], way: _Way, why: Unsupported
) -> Compiled:
    """Run unsupported operators in torch, and the graphs between them in the runtime.

    Raises:
        RuntimeError: too many or all operators are unsupported.
    """
    if writes_in_place(graph, inputs):
        # The runtime returns copies: a write to one would be lost.
        raise way.nothing(f"it writes in place, and {why}") from None
    open_tuples(graph)
    calls = [node for node in graph.graph.nodes if made_by(node) is node and _is_call(node)]
    left = _unsupported(graph, inputs, calls, way)
    if not left or len(left) > min(_MOST_LEFT_TO_TORCH, len(calls) - 1):
        count = f"{len(left)} of {len(calls)} operators are refused: " if left else ""
        raise way.nothing(f"{count}{why}") from None
    parts = _Parts(graph, inputs, left)
    try:
        for name, given in parts.others():
            part = getattr(parts.whole, name)
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
            if _is_call(node):
                is_chosen = made_by(node) in chosen
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

    def chosen(self) -> list[tuple[str, tuple[Any, ...]]]:
        """(name, arguments) of each part of chosen operators."""
        return [(name, given) for name, given in self._given.items() if name in self._chosen]

    def others(self) -> list[tuple[str, tuple[Any, ...]]]:
        """(name, arguments) of each other part."""
        return [(name, given) for name, given in self._given.items() if name not in self._chosen]


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
    graph: torch.fx.GraphModule, inputs: Sequence[Any], calls: list[torch.fx.Node], way: _Way
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
    graph: torch.fx.GraphModule, inputs: Sequence[Any], chosen: list[torch.fx.Node], way: _Way
) -> bool:
    parts = _Parts(graph, inputs, chosen)
    try:
        for name, given in parts.chosen():
            way.export(getattr(parts.whole, name), given)
    except Unsupported:
        return False
    return True
