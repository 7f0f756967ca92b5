"""Applies a CompileConfig with plain torch, in trials and in the user's process."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch

from autocompile.errors import UsageError
from autocompile.runtime.freezing import Frozen
from autocompile.runtime.regions import regions_of
from autocompile.settings.backends import BACKENDS
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import GUARD_FILTERS

__all__ = ["compile_function", "register_backend_of", "uses_cuda_graphs"]


def register_backend_of(name: str) -> None:
    """Import the package that registers the backend, if there is one.

    Raises:
        ImportError: the package is not installed or does not fit this torch.
    """
    known = BACKENDS.get(name)
    if known and (package := known.registered_by):
        for variable, value in known.variables:
            os.environ.setdefault(variable, value)
        try:
            importlib.import_module(package)
        except Exception as error:  # on a version mismatch ipex raises AttributeError
            raise ImportError(f"{package}: {type(error).__name__}: {error}") from error


def compile_function(
    function: Callable[..., Any],
    config: CompileConfig,
    model: torch.nn.Module | None = None,
    kind: str = "cpu",
) -> Callable[..., Any]:
    """Compile a phase's function. Eager mode gives the function itself, a module gives a module.

    ``model`` is the module that the function calls, needed for regions and frozen weights; ``kind``
    the device type for ``autocast`` without a model or parameters.
    """
    compiled = function if config.is_eager else _compiled(function, config, model)
    if config.autocast == "none":
        return compiled
    module: Any = compiled if isinstance(compiled, torch.nn.Module) else None
    call = compiled if module is None else module.forward
    dtype = getattr(torch, config.autocast)

    def lower(*args: Any, **kwargs: Any) -> Any:
        # The model's device at the time of the call.
        first = next(model.parameters(), None) if model is not None else None
        with torch.autocast(kind if first is None else first.device.type, dtype=dtype):
            return call(*args, **kwargs)

    if module is None:
        return lower
    module.forward = lower
    return compiled


def _compiled(
    function: Callable[..., Any], config: CompileConfig, model: torch.nn.Module | None
) -> Callable[..., Any]:
    register_backend_of(config.backend)
    kwargs = config.compile_kwargs()
    if config.guards != "all":
        name = GUARD_FILTERS[config.guards]
        guards = getattr(torch.compiler, name, None)
        if guards is None:
            raise UsageError(
                f"torch {torch.__version__} has no torch.compiler.{name}", hint="a newer torch"
            )
        kwargs["options"] = {**kwargs.get("options", {}), "guard_filter_fn": guards}
    if config.scope != "regional" and not config.freezing:
        compiled: Callable[..., Any] = torch.compile(function, **kwargs)
        return compiled
    if model is None:
        raise UsageError(f"{config.label()} needs a model, and this phase has none")
    if config.freezing:
        return Frozen(function, kwargs)
    regions = regions_of(model)
    if not regions:
        raise UsageError(f"{type(model).__name__} repeats no block, so it has no regions")
    regions.compile(**kwargs)
    return function


def uses_cuda_graphs(config: CompileConfig) -> bool:
    """Whether torch may use CUDA graphs, whose outputs the next call overwrites."""
    if not torch.cuda.is_available() or config.backend != "inductor":
        return torch.cuda.is_available() and config.backend == "cudagraphs"
    inductor = importlib.import_module("torch._inductor.config")
    modes = importlib.import_module("torch._inductor").list_mode_options()
    options = {**modes.get(config.mode, {}), **dict(config.options)}
    return bool(options.get("triton.cudagraphs", inductor.triton.cudagraphs))
