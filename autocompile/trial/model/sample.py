"""The small model that ``autocompile doctor`` compiles to try a backend."""

from __future__ import annotations

import torch


def get_model() -> torch.nn.Module:
    """Two linear layers with a ReLU between them."""
    return torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
    )


def get_inputs(batch_size: int) -> tuple[torch.Tensor]:
    """One float batch of shape (batch_size, 32)."""
    return (torch.randn(batch_size, 32),)
