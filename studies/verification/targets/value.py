"""A value function in bfloat16: one number for each row, whose rounding is large beside it."""

import torch
from torch import nn


def get_model():
    layers = [nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(256, 1)).bfloat16()


def get_inputs():
    return (torch.randn(4, 64, dtype=torch.bfloat16),)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def get_loss(values, inputs):
    return (values.float() - inputs[0].float().mean(1, keepdim=True)).square().mean()
