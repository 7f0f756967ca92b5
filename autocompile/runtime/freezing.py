"""Frozen weights: constants that Inductor folds and packs, and reads again when they change.

``options={"freezing": True}`` does nothing for the parameters of a module, which Dynamo makes
inputs of the graph; and where the global ``torch._inductor.config.freezing`` is set, Dynamo makes
them constants for ever: an RL worker would act by its first policy. So they stay inputs of Dynamo's
graph, and constants only of what Inductor gets. Each call brings the weights along, whatever holds
them, and where a version counter has moved all is frozen anew, which is a compile; what is not seen
so, :mod:`autocompile.runtime.versions` says.
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
from autocompile.runtime.versions import count_fused_steps, stamp

__all__ = ["Frozen"]

_BEYOND_LIMIT: Any = getattr(torch._dynamo.exc, "FailOnRecompileLimitHit", ())  # not in all torches


class Frozen:
    """A function of a model, compiled with the weights that the model has.

    Any number of threads may call it.

    Args:
        function: what to compile.
        model: what it is about. All weights that the function reads are frozen, also those that
            something else holds.
        kwargs: of ``torch.compile``.
    """

    def __init__(
        self, function: Callable[..., Any], model: torch.nn.Module, kwargs: dict[str, Any]
    ) -> None:
        self._function, self._model, self._kwargs = function, model, kwargs
        self._artifact: _Artifact | None = None
        self._lock = threading.Lock()
        count_fused_steps()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; freezes the weights first if they are not those of the last call.

        Inputs beyond Dynamo's limit of specialisations are computed in eager mode.

        Raises:
            RuntimeError: gradients are recorded, the graph breaks, or the call itself writes to
                what is frozen.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("frozen weights have no gradients: use torch.no_grad()")
        while True:
            # Held while it runs: another thread may put the next in its place meanwhile.
            artifact = self._artifact or self._next(None)
            try:
                return artifact.call(*args, **kwargs)
            except _Stale:  # nothing has been done yet
                stale = weakref.ref(artifact)
            except torch._dynamo.exc.Unsupported as error:
                # What follows a break hangs on the code of the model itself, and would outlive us.
                said = str(error).strip().partition("\n")[0]
                raise RuntimeError(
                    f"the graph breaks, and only one graph can be frozen: {said}"
                ) from error
            except _BEYOND_LIMIT:
                # As without fullgraph: Dynamo compiles for no more shapes than its limit says.
                return self._function(*args, **kwargs)
            del artifact  # it holds a copy of the weights, which goes before another is made
            self._next(stale)

    def _next(self, stale: weakref.ref[_Artifact] | None) -> _Artifact:
        """An artifact to call instead of this one; another thread may have made it."""
        with self._lock:
            if stale is not None and self._artifact is stale():
                self._artifact = None
            if self._artifact is None:
                self._artifact = _Artifact(self._function, self._kwargs)
            return self._artifact


class _Stale(Exception):
    """A weight is not what it was when it was frozen."""


class _Artifact:
    """What is compiled with the weights as they are at the first call, one graph for each shape.

    When nobody holds it any more, Inductor's modules go, in which a copy of the weights is.
    """

    def __init__(self, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        # Options of its own: torch.compile takes some out of the dictionary it is given.
        own: Any = {k: dict(v) if k == "options" else v for k, v in kwargs.items()}
        backend = _Freezing(own.get("dynamic"))
        own.update(backend=backend, fullgraph=True)
        self.call: Callable[..., Any] = torch.compile(with_own_code(function, "frozen"), **own)
        # Now, and not when the garbage collector finds what torch.compile has made.
        weakref.finalize(self, _forget, backend.modules).atexit = False


class _Freezing:
    """Inductor as a backend that takes weights as constants.

    Attributes:
        modules: what Inductor has written and loaded.
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
        """Compile a graph; what comes back raises :class:`_Stale` when a weight has changed."""
        graph, held = attributes_lifted(graph, inputs)
        args = [*inputs, *held]
        weights = [i for i, value in enumerate(args) if is_weight(value)]
        # Read before the weights are: what changes in between is seen at the next call.
        stamps = [(i, *stamp(args[i])) for i in weights]
        # What torch.compile makes of backend="inductor", its checks of mode and options included.
        wrapper: Any = torch._TorchCompileInductorWrapper
        inductor = wrapper(mode, {**(options or {}), "freezing": True}, self._dynamic)
        written = importlib.import_module("torch._inductor.codecache").PyCodeCache.modules
        before = list(written)  # Dynamo compiles for one thread at a time, others may forget
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
    """A graph with constants, called with what the graph without them is called with.

    Args:
        made: the graph.
        kept: the weights: as long as these live, no others have their addresses.
        stamps: where among the arguments the weights are, and what they were.
        others: where the graph's own arguments are.
        held: what follows after the arguments that a caller gives.
    """
    is_tried = False

    def call(*args: Any) -> Any:
        nonlocal is_tried
        given = (*args, *held) if held else args
        for i, pointer, version in stamps:  # as stamp() does, in a third of the time
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
    """Let go of Inductor's modules: torch would hold them, and the weights, to the end."""
    cache = importlib.import_module("torch._inductor.codecache").PyCodeCache
    for module in modules:
        if module in cache.modules:
            cache.modules.remove(module)
        for path in [p for p, kept in list(cache.modules_no_attr.items()) if kept is module]:
            del cache.modules_no_attr[path]
        sys.modules.pop(vars(module).get("__name__", ""), None)
        vars(module).clear()
    modules.clear()
