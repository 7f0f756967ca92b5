"""Frozen weights: constants that Inductor folds and packs, compiled again when they change.

``options={"freezing": True}`` does not freeze the parameters of a module, since Dynamo makes them
graph inputs. The global ``torch._inductor.config.freezing`` makes them constants for ever, so an
RL worker would keep its first policy. Here they are inputs of Dynamo's graph and constants of
Inductor's. Each call compares their version counters and recompiles after a change;
:mod:`autocompile.runtime.weights.versions` lists the changes that this misses.
"""

from __future__ import annotations

import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from autocompile.runtime.graphs import arguments_held, attributes_lifted, is_weight, with_own_code
from autocompile.runtime.weights.versions import count_fused_steps, stamp

__all__ = ["Frozen"]

_BEYOND_LIMIT: Any = getattr(torch._dynamo.exc, "FailOnRecompileLimitHit", ())  # not in all torches


class Frozen:
    """A function compiled with the current weights as constants. Thread-safe.

    Args:
        function: all weights that it reads are frozen, also those outside the model.
        model: the module that it calls.
        kwargs: arguments of ``torch.compile``.
    """

    def __init__(
        self, function: Callable[..., Any], model: torch.nn.Module, kwargs: dict[str, Any]
    ) -> None:
        self._function, self._model, self._kwargs = function, model, kwargs
        self._artifact: _Artifact | None = None
        self._lock = threading.Lock()
        count_fused_steps()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, after freezing the weights again if they changed.

        Input shapes beyond Dynamo's recompile limit are computed in eager mode.

        Raises:
            RuntimeError: gradients are enabled, the graph breaks, or the model writes to its own
                buffers.
        """
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
                said = str(error).strip().partition("\n")[0]
                raise RuntimeError(
                    f"the graph breaks, and only one graph can be frozen: {said}"
                ) from error
            except _BEYOND_LIMIT:
                # The recompile limit: run eager, as Dynamo does without fullgraph.
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
        # Copy the options: torch.compile removes entries from the dictionary.
        own: Any = {k: dict(v) if k == "options" else v for k, v in kwargs.items()}
        backend = _Freezing(own.get("dynamic"))
        own.update(backend=backend, fullgraph=True)
        self.call: Callable[..., Any] = torch.compile(with_own_code(function, "frozen"), **own)
        # Unload at once: the garbage collector may find what torch.compile made much later.
        weakref.finalize(self, _forget, backend.modules).atexit = False


class _Freezing:
    """A backend that calls Inductor with the weights as constants.

    Attributes:
        modules: the modules that Inductor has generated and loaded.
    """

    def __init__(self, dynamic: bool | None) -> None:
        self._dynamic = dynamic
        self.modules: list[ModuleType] = []

    def __call__(
        self,
        graph: torch.fx.GraphModule,
        inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compile a graph to a function that raises :class:`_Stale` when a weight has changed."""
        graph, held = attributes_lifted(graph, inputs)
        args = [*inputs, *held]
        weights = [i for i, value in enumerate(args) if is_weight(value)]
        # Read the stamps before the weights: a change in between shows at the next call.
        stamps = [(i, *stamp(args[i])) for i in weights]
        # As torch.compile does for backend="inductor", including its checks of mode and options.
        wrapper: Any = torch._TorchCompileInductorWrapper
        inductor = wrapper(mode, {**(options or {}), "freezing": True}, self._dynamic)
        written = importlib.import_module("torch._inductor.codecache").PyCodeCache.modules
        before = list(written)  # Dynamo compiles in one thread at a time; others may unload
        others = [i for i in range(len(args)) if i not in weights]
        made = inductor(arguments_held(graph, args, weights), [args[i] for i in others])
        known = set(map(id, before))
        own = [module for module in written if id(module) not in known]
        self.modules += own
        call = _watching(made, [args[i].detach() for i in weights], stamps, others, held)
        weakref.finalize(call, _forget, own).atexit = False  # Dynamo may be reset
        return call


def _watching(
    made: Callable[..., Any],
    kept: list[torch.Tensor],
    stamps: list[tuple[int, int, int]],
    others: list[int],
    held: list[torch.Tensor],
) -> Callable[..., Any]:
    """A compiled graph with constants, called like the graph without them.

    Args:
        made: the compiled graph.
        kept: the weights; while they live, their addresses are not reused.
        stamps: (place among the arguments, address, version) of each weight.
        others: places of the remaining arguments.
        held: tensors to append to the caller's arguments.
    """
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

    call.kept = kept  # type: ignore[attr-defined]
    return call


def _forget(modules: list[ModuleType]) -> None:
    """Unload Inductor's modules: torch keeps them, with the weights, until the process exits."""
    cache = importlib.import_module("torch._inductor.codecache").PyCodeCache
    for module in modules:
        if module in cache.modules:
            cache.modules.remove(module)
        for path in [p for p, kept in list(cache.modules_no_attr.items()) if kept is module]:
            del cache.modules_no_attr[path]
        sys.modules.pop(vars(module).get("__name__", ""), None)
        vars(module).clear()
    modules.clear()
