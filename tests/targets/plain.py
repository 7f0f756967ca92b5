"""The two plain functions, and modules and functions to be named."""

import random
from functools import partial

import numpy as np
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)
        self.register_buffer("offset", torch.as_tensor(np.random.rand(3)).float())
        self.scale = random.random()

    def forward(self, x):
        return self.linear(x) * self.scale + self.offset


class Data:
    pass


def get_model():
    return Net()


def get_inputs(batch_size):
    return (torch.randn(batch_size, 6),)


def make_wide():
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Linear(12, 3))


instance = torch.nn.Linear(6, 2)
number = 5
half_made = partial(torch.nn.Linear, 6, 2)
