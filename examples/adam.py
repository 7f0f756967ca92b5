"""The model of PyTorch's recipe "Compiling the optimizer": ten linear layers and Adam.

autocompile tune examples/adam.py --phase optimizer_step
"""

import torch
from torch import nn


def get_model():
    return nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(10)])


def get_inputs(batch_size):
    return (torch.rand(batch_size, 1024),)


def get_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)
