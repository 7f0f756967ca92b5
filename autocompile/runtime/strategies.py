"""How the ranks of a training program average their gradients, beside a compiled model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from autocompile.runtime.applying import apply_config
from autocompile.settings.config import CompileConfig

ONE_BUCKET_MB = 1 << 20
"""More than any model has, for one bucket."""

_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "one_bucket": {"bucket_cap_mb": ONE_BUCKET_MB},
    "bucket_views": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
}
"""What values of the dimension ``ddp`` give to DistributedDataParallel."""


def ddp_arguments(config: CompileConfig) -> dict[str, Any]:
    """What a setting gives to ``DistributedDataParallel`` beside the model."""
    return dict(_ARGUMENTS.get(config.ddp, {}))


def compiled_ddp(
    model: torch.nn.Module, phase: str, config: CompileConfig, optimizers: list[Any]
) -> torch.nn.Module:
    """Compile a model in place and wrap it in DistributedDataParallel.

    ``model`` keeps its keys; the result is to be called in its place. A wrapped model that is
    compiled itself is split at the same places, and of one of ``torch.nn``'s own classes Dynamo
    then captures nothing (torch 2.13).
    """
    apply_config(model, phase, config, optimizers)
    device = next(model.parameters()).device
    ids = [device.index] if device.type == "cuda" else None
    kind = torch.nn.parallel.DistributedDataParallel
    return kind(model, device_ids=ids, **ddp_arguments(config))


@contextlib.contextmanager
def splitting_of(config: CompileConfig) -> Iterator[None]:
    """Context in which Dynamo splits graphs at DDP's buckets as the setting has it."""
    if config.ddp != "unsplit":
        yield
        return
    with torch._dynamo.config.patch(optimize_ddp=False):
        yield
