"""Detects outputs that a later call overwrites, so that a caller cannot keep two results."""

from __future__ import annotations

from typing import Any

import torch

from autocompile.trial.verify.outputs import View
from autocompile.trial.verify.tree import comparable, paths

__all__ = ["Held"]

_PARTS = ("outputs", "loss")  # gradients and buffers are meant to change


class Held:
    """The tensors of a result, not copied, with copies of their first values."""

    def __init__(self, view: View) -> None:
        parts = comparable({name: view[name] for name in _PARTS if name in view})
        self._leaves = [
            (path, leaf, leaf.detach().clone())
            for path, leaf in paths(parts)
            if isinstance(leaf, torch.Tensor)
        ]

    def overwritten(self) -> list[str]:
        """Paths of the tensors whose values have changed."""
        return [path for path, tensor, first in self._leaves if not _is_still(tensor, first)]


def _is_still(tensor: Any, first: torch.Tensor) -> bool:
    try:
        now = tensor.detach()
        return bool(((now == first) | ((now != now) & (first != first))).all())
    except RuntimeError:  # torch refuses to read what a CUDA graph has overwritten
        return False
