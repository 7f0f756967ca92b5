"""Convolutions down to 10 x 10, attention among these places, and up again, as in a U-Net."""

import torch
from torch import nn
from torch.nn import functional as F


def stage(channels_in, channels_out, stride=1):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, 1),
        nn.GroupNorm(6, channels_out),
        nn.SiLU(),
    )


class Attention(nn.Module):
    """Attention among all places of an image."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(6, channels)
        self.qkv, self.out = (
            nn.Conv2d(channels, 3 * channels, 1),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x):
        batch, _, height, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, 3, self.heads, -1, height * width)
        query, key, value = parts.transpose(-1, -2).unbind(1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed.transpose(-1, -2).reshape(x.shape))


class Autoencoder(nn.Module):
    """An image to an image of its size."""

    def __init__(self):
        super().__init__()
        self.first, self.second = stage(3, 24, 2), stage(24, 48, 2)
        self.middle = nn.Sequential(stage(48, 72), Attention(72, 4), stage(72, 48))
        self.third, self.fourth = stage(96, 24), stage(48, 24)
        self.last = nn.Conv2d(24, 3, 3, padding=1)

    def forward(self, image):
        first = self.first(image)
        second = self.second(first)
        x = self.third(torch.cat((self.middle(second), second), dim=1))
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = F.interpolate(self.fourth(torch.cat((x, first), dim=1)), scale_factor=2.0)
        return self.last(x)


def get_model():
    return Autoencoder().eval()


def get_inputs():
    return (torch.randn(2, 3, 40, 40),)
