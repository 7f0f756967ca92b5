"""Inverted residuals with squeeze and excitation, as in EfficientNet, for images of 72 x 72."""

import torch
from torch import nn


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 6, 1),
            nn.SiLU(),
            nn.Conv2d(channels // 6, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return x * self.layers(x)


class Inverted(nn.Module):
    """Wide in the middle, with a depthwise convolution."""

    def __init__(self, channels_in, channels_out, size, stride):
        super().__init__()
        wide = 4 * channels_in
        self.is_residual = stride == 1 and channels_in == channels_out
        self.layers = nn.Sequential(
            nn.Conv2d(channels_in, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
            nn.Conv2d(wide, wide, size, stride, size // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
            Gate(wide),
            nn.Conv2d(wide, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )

    def forward(self, x):
        return x + self.layers(x) if self.is_residual else self.layers(x)


def get_model():
    return nn.Sequential(
        nn.Conv2d(3, 18, 3, 2, 1, bias=False),
        nn.BatchNorm2d(18),
        nn.SiLU(),
        Inverted(18, 24, 3, 2),
        Inverted(24, 36, 5, 2),
        Inverted(36, 36, 5, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(36, 20),
    )


def get_inputs():
    return (torch.randn(2, 3, 72, 72),)
