"""The shape of RLlib's default network for Atari under PPO: 16 observations of 84 x 84 x 4."""

import torch
from torch import nn


class Net(nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.ZeroPad2d((2, 2, 2, 2)),
            nn.Conv2d(4, 16, 8, stride=4),
            nn.ReLU(),
            nn.ZeroPad2d((1, 2, 1, 2)),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 256, 11),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.policy = nn.Linear(256, 4)
        self.value = nn.Linear(256, 1)

    def forward(self, observations):
        hidden = self.encoder(observations.permute(0, 3, 1, 2))
        return self.policy(hidden), self.value(hidden)


def get_model():
    return Net()


def get_inputs():
    return (torch.rand(16, 84, 84, 4),)
