"""Frozen weights: constants that Inductor folds and packs, and reads again when they change.

``options={"freezing": True}`` does nothing for the parameters of a module: Dynamo asks the global
``torch._inductor.config.freezing``, under ``torch.no_grad()``, when it traces. And what was frozen
stays as it was: an RL worker would act by its first policy for ever. So the global is set around
each call, and weights whose version counters have moved are frozen anew, which is a compile. A
write through ``.data`` moves no counter, here as in autograd, and is not seen.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

__all__ = ["Frozen"]


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
        self._function, self._kwargs = function, kwargs
        self._config: Any = importlib.import_module("torch._inductor.config")
        # Where each is kept, since another tensor may take its place.
        self._places = [
            (held, name)
            for module in model.modules()
            for held in (module._parameters, module._buffers)
            for name, tensor in held.items()
            if tensor is not None
        ]
        self._seen: list[tuple[int, int]] | None = None
        self._compiled: Callable[..., Any] = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; freezes the weights first if they are not those of the last call.

        Raises:
            RuntimeError: gradients are recorded, or the call itself writes to what is frozen.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("frozen weights have no gradients: call it under torch.no_grad()")
        seen = self._versions()
        is_first = seen != self._seen
        if is_first:
            self._seen, self._compiled = seen, torch.compile(self._anew(), **self._kwargs)
        before = self._config.freezing
        self._config.freezing = True
        try:
            result = self._compiled(*args, **kwargs)
        finally:
            self._config.freezing = before
        if is_first and self._versions() != seen:
            raise RuntimeError("the model writes to its own buffers, so they cannot be frozen")
        return result

    def _versions(self) -> list[tuple[int, int]]:
        found = []
        for held, name in self._places:
            tensor = held[name]
            assert tensor is not None
            found.append((tensor.data_ptr(), tensor._version))
        return found

    def _anew(self) -> Callable[..., Any]:
        """A function that Dynamo has never seen: what it has compiled hangs on the code object."""
        function = self._function

        def frozen(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        code: CodeType = frozen.__code__.replace(co_name="frozen")
        return FunctionType(code, globals(), "frozen", None, frozen.__closure__)
