"""How the ranks of a training program average their gradients, beside a compiled model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import parallel
from torch.nn.parallel import DistributedDataParallel

from autocompile.runtime.applying import apply_config
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import DDP


def in_ddp(model: torch.nn.Module, config: CompileConfig) -> DistributedDataParallel:
    """Wrap a model, which may be compiled, as a setting has it."""
    device = next(model.parameters()).device
    ids = [device.index] if device.type == "cuda" else None
    kind = parallel.DistributedDataParallel  # as it is now: tests put another one there
    return kind(model, device_ids=ids, **DDP[config.ddp])


def compiled_ddp(
    model: torch.nn.Module, phase: str, config: CompileConfig, optimizers: list[Any]
) -> torch.nn.Module:
    """Compile a model in place and wrap it in DistributedDataParallel.

    ``model`` keeps its keys; the result is to be called in its place. A wrapped model that is
    compiled itself is split at the same places, and of one of ``torch.nn``'s own classes Dynamo
    then captures nothing (torch 2.13).
    """
    apply_config(model, phase, config, optimizers)
    return in_ddp(model, config)


@contextlib.contextmanager
def splitting_of(config: CompileConfig) -> Iterator[None]:
    """Context in which Dynamo splits graphs at DDP's buckets as the setting has it."""
    if config.ddp != "unsplit":
        yield
        return
    with torch._dynamo.config.patch(optimize_ddp=False):
        yield
