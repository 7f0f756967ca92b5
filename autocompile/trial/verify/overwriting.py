"""Outputs that a later call overwrites: whoever keeps the answers of two calls has one of them."""

from __future__ import annotations

from typing import Any

import torch

from autocompile.trial.verify.outputs import View
from autocompile.trial.verify.tree import comparable, paths

__all__ = ["Held"]

_PARTS = ("outputs", "loss")  # gradients and buffers are there to be changed


class Held:
    """The tensors of an answer as a caller keeps them, not copied, and what they were at first."""

    def __init__(self, view: View) -> None:
        parts = comparable({name: view[name] for name in _PARTS if name in view})
        self._leaves = [
            (path, leaf, leaf.detach().clone())
            for path, leaf in paths(parts)
            if isinstance(leaf, torch.Tensor)
        ]

    def overwritten(self) -> list[str]:
        """The paths of those that are not any more what they were."""
        return [path for path, tensor, first in self._leaves if not _is_still(tensor, first)]


def _is_still(tensor: Any, first: torch.Tensor) -> bool:
    try:
        now = tensor.detach()
        return bool(((now == first) | ((now != now) & (first != first))).all())
    except RuntimeError:  # torch refuses to read what a CUDA graph has overwritten
        return False
