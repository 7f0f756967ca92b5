"""Compiles a Dynamo graph to ONNX models, or refuses it where a runtime cannot run it like torch.

Options (``torch.compile(..., options={...})``):

``weights``
    ``"live"`` (default): parameters are inputs of the session, so every change takes effect.
    ``"baked"``: they are constants, which the runtime packs and folds. The session is rebuilt when
    a version counter shows a change (see :func:`autocompile.runtime.graphs.stamp`).
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock

from autocompile.runtime.backends.onnx.model import Args, Graph, Unsupported
from autocompile.runtime.backends.onnx.session import Session
from autocompile.runtime.graphs import attributes_lifted

__all__ = ["compile_graph"]

_MOST_SESSIONS = 16  # of one graph with dynamic shapes; least recently used is dropped

Compiled = Callable[..., Any]


def compile_graph(
    kind: type[Session],
    graph: Graph,
    inputs: Args,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compile a graph for a runtime.

    The graph is Dynamo's, with parameters as inputs, and integers for symbolic shapes.

    Raises:
        ValueError: a mode, or an unknown option (see the module).
        RuntimeError: gradients are required, or the runtime cannot run an operator of the graph.
    """
    baked = _wants_baked(kind.backend, mode, options or {})
    graph, held = attributes_lifted(graph, inputs)
    made = _compiled(graph, [*inputs, *held], kind, baked)
    return (lambda *args: made(*args, *held)) if held else made


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


def _compiled(graph: Graph, inputs: Args, kind: type[Session], baked: bool) -> Compiled:
    """Compile a graph that holds no tensors as attributes."""
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    ):
        raise RuntimeError(
            f"the {kind.backend} backend computes no gradients: "
            "call the model under torch.no_grad()"
        )
    if not any(node.op.startswith("call") for node in graph.graph.nodes):
        return graph.forward
    # With dynamic shapes, Dynamo captures one graph for all shapes.
    given = graph.graph.find_nodes(op="placeholder")
    changing = {i for i, n in enumerate(given) if _is_symbolic(n.meta.get("example_value"))}
    # And one for all values of a float, passed as a tensor that the graph reads with item().
    numbers = {i for i, n in enumerate(given) if n.users and all(map(_is_read, n.users))}
    if changing | numbers:
        graph = _numbers_given(graph, numbers) if numbers else graph
        return _ByShape(graph, sorted(changing | numbers), numbers, kind, baked)
    return _for_these(graph, inputs, kind, baked)


def _for_these(graph: Graph, args: Args, kind: type[Session], baked: bool) -> Compiled:
    try:
        # The bound method: of an object Dynamo would copy the attributes, and keep old weights.
        return kind(graph, args, baked).__call__
    except Unsupported as error:
        raise RuntimeError(f"{kind.runtime} cannot run this graph: {error}") from None


class _ByShape:
    """A graph with dynamic shapes or numbers: one session for each combination.

    ``changing`` are the places of the arguments that differ in size or value, ``numbers`` of those
    that come as scalar tensors and are numbers in the graph.
    """

    def __init__(
        self, graph: Graph, changing: list[int], numbers: Collection[int], *how: Any
    ) -> None:
        self._graph, self._changing, self._numbers, self._how = graph, changing, numbers, how
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
                made = self._known(key) or _for_these(self._graph, args, *self._how)
                with self._lock:
                    self._made[key] = made
                    if len(self._made) > _MOST_SESSIONS:
                        self._made.popitem(last=False)
        return made(*args)

    def _known(self, key: Any) -> Compiled | None:
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
            return self._made.get(key)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return value is None or isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_read(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _numbers_given(graph: Graph, places: Collection[int]) -> Graph:
    """A copy of a graph that takes numbers in these places, for tensors it only calls item() of."""
    made = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    given = made.graph.find_nodes(op="placeholder")
    for place in places:
        for node in list(given[place].users):
            node.replace_all_uses_with(given[place])
            made.graph.erase_node(node)
    made.recompile()
    return made
