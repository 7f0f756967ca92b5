"""A plain convolutional network with BatchNorm.

autocompile tune examples/cnn.py
"""

import torch
from torch import nn


def block(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def get_model():
    return nn.Sequential(
        block(3, 32),
        block(32, 64),
        block(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def get_inputs(batch_size):
    return (torch.randn(batch_size, 3, 64, 64),)
