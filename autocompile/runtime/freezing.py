"""Frozen weights: constants that Inductor folds and packs, compiled again when they change.

``options={"freezing": True}`` does not freeze the parameters of a module, since Dynamo makes them
graph inputs. The global ``torch._inductor.config.freezing`` makes them constants for ever, so an
RL worker would keep its first policy. Here they are inputs of Dynamo's graph and constants of
Inductor's. Each call compares their version counters and recompiles after a change;
:func:`autocompile.runtime.graphs.stamp` names the changes that this misses.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from autocompile.errors import first_line
from autocompile.runtime.graphs import (
    attributes_lifted,
    compiled,
    count_fused_steps,
    is_weight,
    stamp,
    with_own_code,
)


class Frozen:
    """A function compiled with the current weights as constants. Thread-safe.

    All weights that it reads are frozen, wherever they are, and again after they changed. Input
    shapes beyond Dynamo's recompile limit are computed in eager mode.

    Raises:
        RuntimeError: of a call: gradients are enabled, the graph breaks, or the model writes to its
            own buffers.
    """

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        self._function, self._kwargs = function, kwargs
        self._artifact: _Artifact | None = None
        self._lock = threading.Lock()
        count_fused_steps()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("frozen weights have no gradients: use torch.no_grad()")
        while True:
            # A local reference: another thread may replace it while it runs.
            artifact = self._artifact or self._next(None)
            try:
                return artifact.call(*args, **kwargs)
            except _Stale:  # raised before anything was computed
                stale = weakref.ref(artifact)
            except torch._dynamo.exc.Unsupported as error:
                # Code after a break would be cached on the model's code and outlive this object.
                raise RuntimeError(
                    f"the graph breaks, and only one graph can be frozen: {first_line(error)}"
                ) from error
            except torch._dynamo.exc.FailOnRecompileLimitHit:
                # As Dynamo does without fullgraph.
                return self._function(*args, **kwargs)
            del artifact  # free its copy of the weights before making another
            self._next(stale)

    def _next(self, stale: weakref.ref[_Artifact] | None) -> _Artifact:
        """The artifact that replaces a stale one; another thread may have made it."""
        with self._lock:
            if stale is not None and self._artifact is stale():
                self._artifact = None
            if self._artifact is None:
                self._artifact = _Artifact(self._function, self._kwargs)
            return self._artifact


class _Stale(Exception):
    """A weight has changed since it was frozen."""


class _Artifact:
    """Code compiled with the weights of the first call, one graph for each shape.

    When it is deleted, Inductor's modules, which hold a copy of the weights, are unloaded.
    """

    def __init__(self, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        modules: list[ModuleType] = []
        backend = functools.partial(_freeze, modules, kwargs["backend"], kwargs.get("dynamic"))
        changed = {**kwargs, "backend": backend, "fullgraph": True}
        self.call = compiled(with_own_code(function, "frozen"), changed)
        # Unload at once: the garbage collector may find what torch.compile made much later.
        weakref.finalize(self, _forget, modules).atexit = False


def _freeze(
    modules: list[ModuleType],
    backend: str,
    dynamic: bool | None,
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A backend that calls Inductor, or one that Inductor compiles for, with constant weights.

    Adds the modules that Inductor has generated and loaded to ``modules``. What it returns raises
    :class:`_Stale` when a weight has changed.
    """
    graph, held = attributes_lifted(graph, inputs)
    args = [*inputs, *held]
    weights = [i for i, value in enumerate(args) if is_weight(value)]
    others = [i for i in range(len(args)) if i not in weights]
    # Read the stamps before the weights: a change in between shows at the next call.
    stamps = [(i, *stamp(args[i])) for i in weights]
    # As torch.compile does, including its checks of mode and options.
    wrapper: Any = torch._TorchCompileInductorWrapper
    if backend != "inductor":
        wrapper = functools.partial(torch._TorchCompileWrapper, backend)
    compiler = wrapper(mode, options, dynamic)
    written = _code_cache().modules
    # Dynamo compiles in one thread at a time; others may unload, and ids be used again.
    before = {id(module): module for module in list(written)}
    with importlib.import_module("torch._inductor.config").patch(freezing=True):
        made = compiler(_arguments_held(graph, args, weights), [args[i] for i in others])
    loaded = [module for module in written if id(module) not in before]
    modules += loaded
    is_tried = False

    def call(*args: Any) -> Any:
        nonlocal is_tried
        given = (*args, *held) if held else args
        for i, pointer, version in stamps:  # stamp() inlined: three times as fast
            weight = given[i]
            if weight._version != version or weight.data_ptr() != pointer:
                raise _Stale
        result = made(*[given[i] for i in others])
        if not is_tried:
            is_tried = True
            if any(stamp(given[i]) != tuple(known) for i, *known in stamps):
                raise RuntimeError("the model writes to its own buffers, so they cannot be frozen")
        return result

    # While the weights live, their addresses are not reused.
    call.kept = [args[i].detach() for i in weights]  # type: ignore[attr-defined]
    weakref.finalize(call, _forget, loaded).atexit = False  # Dynamo may be reset
    return call


def _arguments_held(
    graph: torch.fx.GraphModule, args: Sequence[Any], chosen: Collection[int]
) -> torch.fx.GraphModule:
    """A copy of a graph in which the chosen arguments are parameters and buffers of the graph."""
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


def _forget(modules: list[ModuleType]) -> None:
    """Unload Inductor's modules: torch keeps them, with the weights, until the process exits."""
    cache = _code_cache()
    for module in modules:
        if module in cache.modules:
            cache.modules.remove(module)
        for path in [p for p, kept in list(cache.modules_no_attr.items()) if kept is module]:
            del cache.modules_no_attr[path]
        sys.modules.pop(vars(module).get("__name__", ""), None)
        vars(module).clear()
    modules.clear()


def _code_cache() -> Any:
    return importlib.import_module("torch._inductor.codecache").PyCodeCache
