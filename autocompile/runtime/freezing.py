"""Frozen weights: constants that Inductor folds and packs, compiled again when they change.

``options={"freezing": True}`` does not freeze the parameters of a module, since Dynamo makes them
graph inputs. The global ``torch._inductor.config.freezing`` makes them constants for ever, so an
RL worker would keep its first policy. Here they are inputs of Dynamo's graph and constants of
Inductor's. Each call compares their version counters, and Inductor compiles again after a change;
:class:`autocompile.runtime.graphs.FrozenWeights` names the changes that this misses.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._dynamo.convert_frame import compile_lock

from autocompile.errors import first_line
from autocompile.runtime.graphs import (
    FrozenWeights,
    attributes_lifted,
    compiled,
    count_fused_steps,
    is_weight,
    with_own_code,
)


def frozen(
    function: Callable[..., Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """A function compiled with the current weights as constants. Thread-safe.

    All weights that it reads are frozen, wherever they are, and again after they changed. Input
    shapes beyond Dynamo's recompile limit are computed in eager mode. A call raises a RuntimeError
    if gradients are enabled, the graph breaks, or the model writes to its own buffers.
    """
    count_fused_steps()
    backend = functools.partial(_freeze, kwargs["backend"], kwargs.get("dynamic"))
    changed = {**kwargs, "backend": backend, "fullgraph": True}
    inner = compiled(with_own_code(function, "frozen"), changed)

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("frozen weights have no gradients: use torch.no_grad()")
        try:
            return inner(*args, **kwargs)
        except torch._dynamo.exc.Unsupported as error:
            # Code after a break would be cached on the model's code, with its old weights.
            raise RuntimeError(
                f"the graph breaks, and only one graph can be frozen: {first_line(error)}"
            ) from error
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            return function(*args, **kwargs)  # as Dynamo does without fullgraph

    return call


def _freeze(
    backend: str,
    dynamic: bool | None,
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A backend that calls Inductor, or one that Inductor compiles for, with constant weights."""
    graph, lifted = attributes_lifted(graph, inputs)
    args = [*inputs, *lifted]
    places = _Places.of(args)
    # Fake tensors with Dynamo's symbolic sizes: no constants of the first call's sizes, and no
    # memory of its inputs.
    placeholders = graph.graph.find_nodes(op="placeholder")
    examples = [placeholders[i].meta["example_value"] for i in places.others]
    # As torch.compile does, including its checks of mode and options.
    wrapper: Any = torch._TorchCompileInductorWrapper
    if backend != "inductor":
        wrapper = functools.partial(torch._TorchCompileWrapper, backend)
    compiler = wrapper(mode, options, dynamic)

    def compile_with_constants(constant: torch.fx.GraphModule) -> Callable[..., Any]:
        return compiler(constant, examples)  # type: ignore[no-any-return]

    frozen_graph = _FrozenGraph(compile_with_constants, graph, places, args)

    def call(*args: Any) -> Any:
        return frozen_graph(*args, *lifted)

    return call


@dataclass(frozen=True)
class _Places:
    """Where a graph's weights, the buffers among them, and its other arguments stand."""

    weights: tuple[int, ...]
    buffers: tuple[int, ...]
    others: tuple[int, ...]

    @classmethod
    def of(cls, args: Sequence[Any]) -> _Places:
        weights = [i for i, value in enumerate(args) if is_weight(value)]
        buffers = [i for i in weights if not isinstance(args[i], torch.nn.Parameter)]
        others = [i for i in range(len(args)) if i not in weights]
        return cls(tuple(weights), tuple(buffers), tuple(others))


class _FrozenGraph:
    """A graph with its weights as constants, which is compiled again after they changed."""

    def __init__(
        self,
        compiler: Callable[[torch.fx.GraphModule], Callable[..., Any]],
        graph: torch.fx.GraphModule,
        places: _Places,
        args: Sequence[Any],
    ) -> None:
        self._compiler, self._graph, self._places = compiler, graph, places
        self._current: _Artifact | None = self._freeze(args)
        self._is_tried = False

    def __call__(self, *args: Any) -> Any:
        artifact = self._artifact_for(args)
        others = [args[i] for i in self._places.others]
        if self._is_tried:
            return artifact.run(*others)
        # Only the first call is checked, as it costs time. Of parameters, another thread may load
        # new values meanwhile.
        before = self._versions_of_buffers(args)
        result = artifact.run(*others)
        self._is_tried = True
        if before != self._versions_of_buffers(args):
            raise RuntimeError(
                "the model writes to its own buffers, so they cannot be frozen"
            )
        return result

    def _artifact_for(self, args: Sequence[Any]) -> _Artifact:
        """The artifact of these weights, compiled now if the last one is of others."""
        artifact = self._current  # another thread may replace it while it runs
        if artifact is not None and not artifact.weights.are_stale(args):
            return artifact
        # Not to be held while another is compiled: see below.
        artifact = None
        with compile_lock:
            if self._current is None or self._current.weights.are_stale(args):
                # Frees its copy of the weights before another is made.
                self._current = None
                self._current = self._freeze(args)
            return self._current

    def _freeze(self, args: Sequence[Any]) -> _Artifact:
        return _Artifact(self._compiler, self._graph, args, self._places.weights)

    def _versions_of_buffers(self, args: Sequence[Any]) -> list[int]:
        return [args[i]._version for i in self._places.buffers]


class _Artifact:
    """What Inductor made of a graph with these weights, which it unloads when it is deleted."""

    def __init__(
        self,
        compiler: Callable[[torch.fx.GraphModule], Callable[..., Any]],
        graph: torch.fx.GraphModule,
        args: Sequence[Any],
        weights: Collection[int],
    ) -> None:
        self.weights = FrozenWeights(args, weights)
        # One thread at a time: what is loaded meanwhile is of this artifact.
        with compile_lock:
            modules = _code_cache().modules
            # They stay alive, so that no id is used again; other threads may unload meanwhile.
            before = {id(module): module for module in list(modules)}
            with (
                importlib.import_module("torch._inductor.config").patch(freezing=True),
                # As while Dynamo compiles: other threads' calls would be errors of tracing.
                mock.patch.object(torch.compiler, "_is_compiling_flag", True),
            ):
                self.run = compiler(_arguments_held(graph, args, weights))
            loaded = [module for module in list(modules) if id(module) not in before]
        weakref.finalize(self, _forget, loaded).atexit = False


def _arguments_held(
    graph: torch.fx.GraphModule, args: Sequence[Any], chosen: Collection[int]
) -> torch.fx.GraphModule:
    """A copy of a graph in which the chosen arguments are parameters and buffers of the graph."""
    made = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    given = made.graph.find_nodes(op="placeholder")
    for place in chosen:
        name, value = f"constant_{place}", args[place]
        if isinstance(value, torch.nn.Parameter):
            # Without its gradient, which Inductor's views of it would lack.
            alike = torch.nn.Parameter(value.detach(), value.requires_grad)
            made.register_parameter(name, alike)
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
        kept = list(cache.modules_no_attr.items())
        for path in [path for path, one in kept if one is module]:
            del cache.modules_no_attr[path]
        sys.modules.pop(vars(module).get("__name__", ""), None)
        vars(module).clear()


def _code_cache() -> Any:
    return importlib.import_module("torch._inductor.codecache").PyCodeCache
