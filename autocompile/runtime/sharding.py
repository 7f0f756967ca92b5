"""Tensors of which each rank has a part, as FSDP2 keeps parameters, gradients and moments.

What is compared is whole; what is kept and put back is each rank's own part. Where nothing is
split, each function gives back what it is given.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from autocompile.runtime.ranks import here

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_split(x: Any) -> bool:
    """Whether this process has a part of it only."""
    if not here().are_several:
        return False
    from torch.distributed.tensor import DTensor  # half a second, for ranks only

    return isinstance(x, DTensor)


def whole(x: Any) -> Any:
    """All of it, gathered from the ranks: all must ask."""
    if not is_split(x):
        return x
    return x.full_tensor()


def own_part(x: Any) -> Any:
    """This rank's part, which shares its memory: the same object at each call."""
    if not is_split(x):
        return x
    with torch.no_grad():
        return x.to_local()


def around(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that is split as ``like`` is, of this rank's part."""
    if not is_split(like):
        return part
    from torch.distributed.tensor import DTensor

    of: DTensor = like  # type: ignore[assignment]
    return DTensor.from_local(
        part,
        of.device_mesh,
        of.placements,
        run_check=False,
        shape=of.shape,
        stride=of.stride(),
    )


def split_as(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor that all ranks have, with the type and device of ``like``, split as that is."""
    if not is_split(like):
        return x.to(like)
    from torch.distributed.tensor import distribute_tensor

    of: DTensor = like  # type: ignore[assignment]
    mine = x.to(of.to_local())
    return distribute_tensor(mine, of.device_mesh, of.placements, src_data_rank=None)


def is_split_model(model: torch.nn.Module) -> bool:
    """Whether FSDP2 has split the parameters of a model, or of a part of it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # slow to import; in use if it was
    return bool(fsdp) and any(isinstance(m, fsdp.FSDPModule) for m in model.modules())  # type: ignore[union-attr]


def begin_anew(model: torch.nn.Module) -> None:
    """Let no parameter stay gathered, and no gradient wait to be averaged, from calls before.

    After a forward pass without a backward the model has other parameters than its optimizer. A
    gradient that a step does not average yet (``set_requires_gradient_sync(False)``) is in places
    without a public name (torch 2.11 to 2.15). Of HSDP what was averaged in part stays
    (``set_requires_all_reduce(False)``).
    """
    if not is_split_model(model):
        return
    for module in model.modules():
        if hasattr(module, "reshard"):
            split: Any = module
            split.reshard()
            for group in _groups_of(split):
                for each in group.fsdp_params:
                    held = vars(each)
                    # Since torch 2.15 the gathered parameter has it all.
                    if "unsharded_accumulated_grad" in held:
                        each.unsharded_accumulated_grad = None
                    if (gathered := held.get("_unsharded_param")) is not None:
                        gathered.grad = None


def _groups_of(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)  # torch 2.13; one before
    one = [state._fsdp_param_group] if several is None else several
    return [group for group in one if group is not None]
