"""A residual network of ResNet-18's basic blocks, narrower and for small images."""

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x):
        hidden = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


def get_model():
    stem = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    )
    stages = [Block(32, 32, 1), Block(32, 32, 1), Block(32, 32, 1)]
    stages += [Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1)]
    stages += [Block(64, 128, 2), Block(128, 128, 1), Block(128, 128, 1)]
    return nn.Sequential(
        stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100)
    )


def get_inputs(batch_size):
    return (torch.randn(batch_size, 3, 64, 64),)
