"""Applies a CompileConfig with plain torch, in trials and in the user's process."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch

from autocompile.errors import UsageError
from autocompile.runtime.freezing import frozen
from autocompile.runtime.graphs import compiled
from autocompile.runtime.regions import compile_blocks, repeated_blocks
from autocompile.settings.backends import BACKENDS
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import GUARD_FILTERS


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
    function: Callable[..., Any], config: CompileConfig, model: torch.nn.Module | None = None
) -> Callable[..., Any]:
    """Compile a function; ``model``, which it calls, is needed for regions and frozen weights."""
    if config.is_eager:
        return function
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
        return compiled(function, kwargs)
    if model is None:
        raise UsageError(f"{config.label()} needs a model, and this phase has none")
    if config.freezing:
        return frozen(function, kwargs)
    blocks = repeated_blocks(model)
    if not blocks:
        raise UsageError(f"{type(model).__name__} repeats no block, so it has no regions")
    compile_blocks(blocks, kwargs)
    return function


def uses_cuda_graphs(config: CompileConfig) -> bool:
    """Whether torch may use CUDA graphs, whose outputs the next call overwrites."""
    if not torch.cuda.is_available() or config.backend != "inductor":
        return torch.cuda.is_available() and config.backend == "cudagraphs"
    inductor = importlib.import_module("torch._inductor.config")
    modes = importlib.import_module("torch._inductor").list_mode_options()
    options = {**modes.get(config.mode, {}), **dict(config.options)}
    return bool(options.get("triton.cudagraphs", inductor.triton.cudagraphs))
