"""A transformer that classifies short sequences: two layers of width 128."""

import torch
from encoder import Encoder, get_loss, get_optimizer, labels  # noqa: F401


def get_model():
    return Encoder(width=128, heads=4, layers=2)


def get_inputs():
    return torch.randn(8, 64, 128)
