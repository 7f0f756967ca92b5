"""Apply a CompileConfig with plain torch: one place, for trials and for the user's process."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

import torch

from autocompile.config import CompileConfig
from autocompile.errors import UsageError

__all__ = [
    "RL_PHASES",
    "compile_function",
    "compile_model",
    "register_backend_of",
    "uses_cuda_graphs",
]

# Backends that torch knows only after their package has been imported.
_REGISTERED_BY = {"ipex": "intel_extension_for_pytorch", "tensorrt": "torch_tensorrt"}

RL_PHASES = ("forward_exploration", "forward_inference", "forward_train")


def register_backend_of(name: str) -> None:
    """Import the package that registers the backend, where there is such a package.

    Raises:
        ImportError: the package is not installed or does not fit this torch.
    """
    if package := _REGISTERED_BY.get(name):
        try:
            importlib.import_module(package)
        except Exception as error:  # ipex ends a version mismatch with an AttributeError
            raise ImportError(f"{package}: {type(error).__name__}: {error}") from error


def compile_function(function: Callable[..., Any], config: CompileConfig) -> Callable[..., Any]:
    """``torch.compile`` with the settings of ``config``; the function itself for eager."""
    if config.is_eager:
        return function
    register_backend_of(config.backend)
    compiled: Callable[..., Any] = torch.compile(function, **config.compile_kwargs())
    return compiled


def compile_model(model: torch.nn.Module, config: CompileConfig, phase: str) -> torch.nn.Module:
    """Compile what a phase calls and give back the model to use from now on.

    An RLModule's own ``compile`` has another signature than ``nn.Module.compile``, and its public
    ``forward_*`` methods switch between train and eval on each call; so the function beneath,
    ``_forward_*``, is replaced on the instance, as RLlib itself does. Any other module is
    wrapped by ``torch.compile`` as a whole.

    Raises:
        UsageError: the phase is not about the model's forward pass.
    """
    if config.is_eager:
        return model
    if phase == "forward":
        return cast(torch.nn.Module, compile_function(model, config))
    if phase in RL_PHASES:
        name = f"_{phase}"
        setattr(model, name, compile_function(getattr(model, name), config))
        return model
    raise UsageError(
        f"{phase} compiles a function, not a model",
        hint="autocompile export last --to python",
    )


def uses_cuda_graphs(config: CompileConfig) -> bool:
    """Whether torch may replay CUDA graphs for it, which reuse the memory of their outputs."""
    if not torch.cuda.is_available() or config.backend != "inductor":
        return torch.cuda.is_available() and config.backend == "cudagraphs"
    inductor = importlib.import_module("torch._inductor.config")
    modes = importlib.import_module("torch._inductor").list_mode_options()
    options = {**modes.get(config.mode, {}), **dict(config.options)}
    return bool(options.get("triton.cudagraphs", inductor.triton.cudagraphs))
