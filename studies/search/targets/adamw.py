"""AdamW over a transformer of three layers: 36 tensors of unlike sizes, 1.3 million numbers."""

import torch
from torch import nn


def get_model():
    layers = (
        nn.TransformerEncoderLayer(192, 4, 768, batch_first=True) for _ in range(3)
    )
    return nn.Sequential(*layers)


def get_inputs(batch_size):
    return (torch.randn(batch_size, 8, 192),)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
