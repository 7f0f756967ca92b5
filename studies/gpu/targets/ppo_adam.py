"""The optimizer step of the same network: Adam."""

import torch
from ppo_cnn import get_inputs, get_model

__all__ = ["get_inputs", "get_model", "get_optimizer"]


def get_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=5e-5)
