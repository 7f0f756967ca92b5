"""Helpers for what a call depends on besides code: inputs, random state, weights."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

__all__ = ["copy_inputs", "is_expanded", "perturb", "random_states"]

_PERTURBATION = 0.1  # relative to each parameter's RMS


def copy_inputs(tree: Any) -> Any:
    """Copies of the tensors; a tensor that occurs twice is copied once."""
    copies: dict[int, torch.Tensor] = {}

    def copied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in copies:
            copies[id(x)] = x.detach().clone().requires_grad_(x.requires_grad)
        return copies[id(x)]

    return pytree.tree_map(copied, tree)


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, so that it cannot be changed in place."""
    if tensor.layout is not torch.strided:
        return False
    return any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))


def random_states() -> list[bytes]:
    """States of all generators that a model may draw from."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    own = (repr(random.getstate()).encode(), repr(np.random.get_state()).encode())
    return [state.numpy().tobytes() for state in states] + list(own)


def perturb(model: torch.nn.Module, seed: int) -> None:
    """Change every floating parameter and buffer in place, equally for equal seeds.

    Buffers keep their signs and zeros, since they may be variances or masks.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                size = float(p.double().square().mean().sqrt()) if p.numel() else 0.0
                noise = torch.randn(p.shape, generator=generator)
                p.add_((noise * max(size, 1e-3) * _PERTURBATION).to(p))
        for b in model.buffers():
            if b.is_floating_point() and not is_expanded(b):
                b.mul_((1 + _PERTURBATION * torch.rand(b.shape, generator=generator)).to(b))
