"""A network of depthwise separable convolutions, as MobileNet: little arithmetic, much memory."""

import torch
from torch import nn


def separable(before, after, stride=1):
    return nn.Sequential(
        nn.Conv2d(before, before, 3, stride, padding=1, groups=before, bias=False),
        nn.BatchNorm2d(before),
        nn.ReLU6(),
        nn.Conv2d(before, after, 1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU6(),
    )


def get_model():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
        separable(32, 64),
        separable(64, 128, stride=2),
        separable(128, 128),
        separable(128, 256, stride=2),
        *(separable(256, 256) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 100),
    )


def get_inputs(batch_size):
    return (torch.randn(batch_size, 3, 64, 64),)
