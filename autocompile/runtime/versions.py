"""Whether a weight is still what it was: where it lies, and how often it was written to.

torch counts writes in place for autograd, and what holds weights as constants asks that counter.
The kernels of fused optimizers do not count (torch 2.13), so their steps are counted here. What is
not seen: a write through ``.data``, and kernels of other libraries that do not count either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["count_fused_steps", "stamp"]

_counting = False


def stamp(weight: torch.Tensor) -> tuple[int, int]:
    """Two numbers of which one changes with a weight, while its old memory is held."""
    try:
        return weight.data_ptr(), weight._version
    except RuntimeError:  # made under inference_mode, where nothing is counted
        return weight.data_ptr(), -1


def count_fused_steps() -> None:
    """From now on the step of a fused optimizer, of whatever model, is a write to its weights."""
    global _counting
    if not _counting:
        register_optimizer_step_post_hook(_after_step)
        _counting = True


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    # A step may be compiled, and a plain one has to stay one graph.
    if any(group.get("fused") for group in optimizer.param_groups):
        _count_eagerly(optimizer)


def _count_writes(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if group.get("fused"):
            written = [p for p in group["params"] if p.grad is not None and not p.is_inference()]
            torch.autograd.graph.increment_version(written)


# Traced it would have no effect.
_count_eagerly = torch.compiler.disable(_count_writes)  # type: ignore[no-untyped-call]
