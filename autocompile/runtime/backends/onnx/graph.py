"""Compiles a Dynamo graph to ONNX models; operators that a runtime cannot run stay in torch.

Options (``torch.compile(..., options={...})``):

``weights``
    ``"live"`` (default): parameters are inputs of the session, so every change takes effect.
    ``"baked"``: they are constants, which the runtime packs and folds. The session is rebuilt when
    a version counter shows a change (see :mod:`autocompile.runtime.weights.versions`).
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock

from autocompile.runtime.backends.onnx.model import Unsupported
from autocompile.runtime.backends.onnx.parts import Way, in_parts, is_call
from autocompile.runtime.backends.onnx.session import Session
from autocompile.runtime.graphs import attributes_lifted

__all__ = ["compile_graph"]

_MOST_SESSIONS = 16  # of one graph with dynamic shapes; least recently used is dropped

Compiled = Callable[..., Any]


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
    way = Way(kind, _wants_baked(kind.backend, mode, options or {}))
    graph, held = attributes_lifted(graph, inputs)
    if not held:
        return _compiled(graph, inputs, way)
    made = _compiled(graph, [*inputs, *held], way)
    return lambda *args: made(*args, *held)


def _compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any], way: Way) -> Compiled:
    """Compile a graph that holds no tensors as attributes."""
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    ):
        raise RuntimeError(
            f"the {way.kind.backend} backend computes no gradients: "
            "call the model under torch.no_grad()"
        )
    if not any(is_call(node) for node in graph.graph.nodes):
        return graph.forward
    # With dynamic shapes, Dynamo captures one graph for all shapes.
    given = graph.graph.find_nodes(op="placeholder")
    changing = [i for i, n in enumerate(given) if _is_symbolic(n.meta.get("example_value"))]
    # And one for all values of a float, passed as a tensor that the graph reads with item().
    if numbers := [i for i, n in enumerate(given) if n.users and all(map(_is_read, n.users))]:
        graph = _numbers_given(graph, numbers)
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


def _for_these(graph: torch.fx.GraphModule, args: Sequence[Any], way: Way) -> Compiled:
    """Compile the graph for arguments of these shapes."""
    try:
        # The bound method: of an object Dynamo would copy the attributes, and keep old weights.
        return way.session(graph, args).__call__
    except Unsupported as error:
        return in_parts(graph, args, way, error)


class _ByShape:
    """A graph with dynamic shapes or numbers: one session for each combination."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        changing: Sequence[int],
        numbers: Collection[int],
        way: Way,
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


def _numbers_given(graph: torch.fx.GraphModule, places: Collection[int]) -> torch.fx.GraphModule:
    """A copy of a graph that takes numbers in place of scalar tensors.

    Args:
        graph: from Dynamo; not changed.
        places: arguments that the graph uses only through ``item()``.
    """
    made = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    given = made.graph.find_nodes(op="placeholder")
    for place in places:
        for node in list(given[place].users):
            node.replace_all_uses_with(given[place])
            made.graph.erase_node(node)
    made.recompile()
    return made
