"""A small MLP, as policies of robots are: what torch does at each call is most of it."""

import torch
from torch import nn


def get_model():
    return nn.Sequential(
        nn.Linear(48, 256), nn.ELU(), nn.Linear(256, 256), nn.ELU(), nn.Linear(256, 12)
    )


def get_inputs(batch_size):
    return (torch.randn(batch_size, 48),)
