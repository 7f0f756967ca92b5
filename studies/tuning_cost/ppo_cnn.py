"""The network of RLlib's default PPO for Atari frames, in plain torch: NHWC frames, three
convolutions, one linear layer to four actions. Sizes are RLlib's; nothing of RLlib is needed."""

import torch
from torch import nn


class AtariPolicy(nn.Module):
    """Frames of shape (batch, 84, 84, 4) to logits of shape (batch, 4)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.ZeroPad2d((2, 2, 2, 2)),
            nn.Conv2d(4, 16, 8, stride=4),
            nn.ReLU(),
            nn.ZeroPad2d((1, 2, 1, 2)),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.ZeroPad2d((5, 5, 5, 5)),
            nn.Conv2d(32, 256, 11, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Linear(256 * 11 * 11, 4)

    def forward(self, frames):
        return self.head(self.body(frames.permute(0, 3, 1, 2)))


def get_model():
    return AtariPolicy()


def get_inputs(batch_size):
    return (torch.rand(batch_size, 84, 84, 4) * 2 - 1,)
