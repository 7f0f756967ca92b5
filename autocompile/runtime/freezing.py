"""Frozen weights: constants that Inductor folds and packs, and reads again when they change.

``options={"freezing": True}`` does nothing for the parameters of a module: Dynamo asks the global
``torch._inductor.config.freezing``, under ``torch.no_grad()``, when it traces. And what was frozen
stays as it was: an RL worker would act by its first policy for ever. So the global is set around
each call, and weights whose version counters have moved are frozen anew, which is a compile; what
is not seen so, :mod:`autocompile.runtime.versions` says.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

from autocompile.runtime.versions import count_fused_steps, stamp

__all__ = ["Frozen"]

_BREAKS = "the graph breaks, and only one graph can be frozen"


class Frozen:
    """A function of a model, compiled with the weights that the model has.

    Args:
        function: what to compile; reads the weights of ``model``.
        model: whose weights.
        kwargs: of ``torch.compile``.
    """

    def __init__(
        self, function: Callable[..., Any], model: torch.nn.Module, kwargs: dict[str, Any]
    ) -> None:
        self._function, self._model, self._kwargs = function, model, kwargs
        self._config: Any = importlib.import_module("torch._inductor.config")
        self._places, self._breaks = _places(model), False
        self._artifacts: list[Any] = []
        self._seen: list[tuple[int, int]] | None = None
        self._held: list[torch.Tensor] = []
        count_fused_steps()
        self._compiled: Callable[..., Any] = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; freezes the weights first if they are not those of the last call.

        Raises:
            RuntimeError: gradients are recorded, the graph breaks, or the call itself writes to
                what is frozen.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("frozen weights have no gradients: call it under torch.no_grad()")
        if self._breaks:
            raise RuntimeError(_BREAKS)
        seen = self._versions()
        is_first = seen != self._seen
        if is_first:
            self._forget()
            # Options of its own: torch.compile takes some out of the dictionary it is given.
            own: Any = {k: dict(v) if k == "options" else v for k, v in self._kwargs.items()}
            self._hold()
            self._seen, self._compiled = seen, torch.compile(self._anew(), **own)
        cache = importlib.import_module("torch._inductor.codecache").PyCodeCache
        known, breaks = len(cache.modules), _graph_breaks()
        before = self._config.freezing
        self._config.freezing = True
        try:
            result = self._compiled(*args, **kwargs)
        finally:
            self._config.freezing = before
            made = cache.modules[known:]
            self._artifacts += made
        if is_first and _graph_breaks() != breaks:
            # What Dynamo compiled after a break hangs on other code, and would not be made anew.
            self._breaks = True
            raise RuntimeError(_BREAKS)
        if made and not is_first:  # other shapes, or the model has other parts than it had
            self._places = _places(self._model)
            self._hold()
            self._seen = self._versions()
        if is_first and self._versions() != seen:
            raise RuntimeError("the model writes to its own buffers, so they cannot be frozen")
        return result

    def _forget(self) -> None:
        """Let go of the last artifact, which holds a copy of the weights."""
        cache = importlib.import_module("torch._inductor.codecache").PyCodeCache
        for module in self._artifacts:
            if module in cache.modules:
                cache.modules.remove(module)
            for path in [p for p, kept in cache.modules_no_attr.items() if kept is module]:
                del cache.modules_no_attr[path]
            sys.modules.pop(module.__name__, None)
            vars(module).clear()
        self._artifacts = []
        self._compiled = self._function

    def _versions(self) -> list[tuple[int, int]]:
        found = []
        for held, name in self._places:
            value: Any = held.get(name)
            found.append(stamp(value) if isinstance(value, torch.Tensor) else (id(value), -1))
        return found

    def _hold(self) -> None:
        """Keep the memory of the weights as they are: no others may get their addresses."""
        values = [held.get(name) for held, name in self._places]
        self._held = [v.detach() for v in values if isinstance(v, torch.Tensor)]

    def _anew(self) -> Callable[..., Any]:
        """A function that Dynamo has never seen: what it has compiled hangs on the code object."""
        function = self._function

        def frozen(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        code: CodeType = frozen.__code__.replace(co_name="frozen")
        return FunctionType(code, globals(), "frozen", None, frozen.__closure__)


def _graph_breaks() -> int:
    return sum(importlib.import_module("torch._dynamo.utils").counters["graph_break"].values())


def _places(model: torch.nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Where each tensor of the model is kept, since another may take its place."""
    return [
        (held, name)
        for module in _reachable(model)
        for held in (module._parameters, module._buffers, vars(module))
        for name, value in held.items()
        if isinstance(value, torch.Tensor)
    ]


def _reachable(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The model's modules, those in plain lists and dicts of theirs too: Dynamo goes there."""
    found: dict[int, torch.nn.Module] = {}
    waiting: list[Any] = [model]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.nn.Module):
            if id(value) not in found:
                found[id(value)] = value
                waiting += [*value.children(), *vars(value).values()]
        elif type(value) in (list, tuple, set):
            waiting += value
        elif type(value) is dict:
            waiting += value.values()
    return list(found.values())
