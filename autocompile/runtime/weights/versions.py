"""Detects changed weights by their address and version counter.

torch counts in-place writes for autograd. Kernels of fused optimizers do not count (torch 2.13), so
their steps are counted here. Writes through ``.data`` and by kernels of other libraries are missed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["count_fused_steps", "stamp"]

_counting = False


def stamp(weight: torch.Tensor) -> tuple[int, int]:
    """Address and version: one changes with the weight, while its old memory is held."""
    try:
        return weight.data_ptr(), weight._version
    except RuntimeError:  # made in inference mode, which counts no versions
        return weight.data_ptr(), -1


def count_fused_steps() -> None:
    """Make the steps of all fused optimizers count as writes to their weights, from now on."""
    global _counting
    if not _counting:
        register_optimizer_step_post_hook(_after_step)
        _counting = True


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    # The step may be compiled: calling a disabled function for all would break its graph.
    if any(group.get("fused") for group in optimizer.param_groups):
        _count_eagerly(optimizer)


def _count_writes(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if group.get("fused"):
            written = [p for p in group["params"] if p.grad is not None and not p.is_inference()]
            torch.autograd.graph.increment_version(written)


# Tracing it would drop the side effect.
_count_eagerly = torch.compiler.disable(_count_writes)  # type: ignore[no-untyped-call]
