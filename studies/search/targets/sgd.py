"""SGD with momentum over a deep ConvNet with BatchNorm: 72 tensors, 2 million numbers."""

import torch
from torch import nn


def get_model():
    layers = [nn.Conv2d(96, 96, 3, padding=1, bias=False) for _ in range(24)]
    norms = [nn.BatchNorm2d(96) for _ in layers]
    return nn.Sequential(
        *(module for pair in zip(layers, norms, strict=True) for module in pair)
    )


def get_inputs(batch_size):
    return (torch.randn(batch_size, 96, 8, 8),)


def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
