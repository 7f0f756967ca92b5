"""A plain ConvNet with BatchNorm: a small classifier of images."""

import torch
from torch import nn


def stage(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def get_model():
    return nn.Sequential(
        stage(3, 32),
        stage(32, 64),
        stage(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def get_inputs(batch_size):
    return (torch.randn(batch_size, 3, 32, 32),)
