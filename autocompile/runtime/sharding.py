"""Tensors of which each rank has a part, as FSDP2 keeps parameters, gradients and moments.

What is compared is whole; what is kept and put back is each rank's own part. Where nothing is
split, each function gives back what it is given.
"""

from __future__ import annotations

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


def whole(x: torch.Tensor) -> torch.Tensor:
    """All of it, gathered from the ranks: all must ask."""
    if not is_split(x):
        return x
    split: DTensor = x  # type: ignore[assignment]
    return split.full_tensor()


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
