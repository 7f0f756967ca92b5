"""Adam over the weights and biases of twenty linear layers: 40 tensors, 2 million numbers."""

import torch
from torch import nn


def get_model():
    return nn.Sequential(*(nn.Linear(320, 320) for _ in range(20)))


def get_inputs(batch_size):
    return (torch.randn(batch_size, 320),)


def get_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3)
