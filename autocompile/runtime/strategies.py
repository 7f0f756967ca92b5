"""How the ranks of a training program average their gradients, beside a compiled model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn import parallel

from autocompile.errors import TargetError, first_words
from autocompile.runtime.compiling import repeated_blocks
from autocompile.settings.config import CompileConfig
from autocompile.settings.dimensions import DDP, FSDP


def spread(
    model: torch.nn.Module, strategy: str, config: CompileConfig
) -> torch.nn.Module:
    """Let ranks train a model together; returns what to call in its place.

    The model may be compiled in place, before or after: Dynamo looks at a module when it is first
    called. An optimizer is made afterwards, since FSDP2 puts other parameters into the model.
    """
    if strategy == "ddp":
        return in_ddp(model, config)
    if strategy == "fsdp2":
        shard(model, config)
    return model  # one process alone, or what get_model() has wrapped


def in_ddp(model: torch.nn.Module, config: CompileConfig) -> torch.nn.Module:
    """Wrap a model in DistributedDataParallel as a setting has it.

    A wrapped model that is compiled itself is split at the same places, and of one of ``torch.nn``'s
    own classes Dynamo then captures nothing (torch 2.13): so the model in it is compiled.
    """
    device = next(model.parameters()).device
    ids = [device.index] if device.type == "cuda" else None
    kind = parallel.DistributedDataParallel  # as it is now: tests put another one there
    return kind(model, device_ids=ids, **DDP[config.ddp])


def shard(model: torch.nn.Module, config: CompileConfig) -> None:
    """Split the parameters of each repeated block, and of the rest, in place (FSDP2)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # half a second, for ranks only

    kind = next(model.parameters()).device.type
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    try:
        for module in [*repeated_blocks(model), model]:
            fully_shard(module, mesh=mesh, **FSDP[config.fsdp])
    except (ValueError, NotImplementedError) as error:
        raise TargetError(
            f"FSDP2 does not split this {type(model).__name__} block by block",
            first_words(error),
            hint="get_model() with fully_shard of your own, and --strategy own",
        ) from error


@contextlib.contextmanager
def splitting_of(config: CompileConfig) -> Iterator[None]:
    """Context in which Dynamo splits graphs at DDP's buckets as the setting has it."""
    if config.ddp != "unsplit":
        yield
        return
    with torch._dynamo.config.patch(optimize_ddp=False):
        yield
