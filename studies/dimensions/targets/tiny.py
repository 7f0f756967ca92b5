"""One small layer: what torch does at each call is most of it."""

import torch
from torch import nn


def get_model():
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def get_inputs(batch_size):
    return (torch.randn(batch_size, 8),)
