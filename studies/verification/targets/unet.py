"""A UNet as of a diffusion model: group norm, a time, attention at the bottom, and AdamW."""

import os

import torch
from torch import nn

IS_SMALL = "VERIFICATION_SMALL" in os.environ
WIDTH, PIXELS = (16, 16) if IS_SMALL else (64, 32)


class Residual(nn.Module):
    """Two convolutions with the time between them, beside what they are added to."""

    def __init__(self, before, after):
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, before), nn.GroupNorm(8, after)])
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.time, self.skip = nn.Linear(WIDTH, after), nn.Conv2d(before, after, 1)

    def forward(self, x, time):
        y = self.first(nn.functional.silu(self.norms[0](x)))
        y = y + self.time(time)[:, :, None, None]
        return self.skip(x) + self.second(nn.functional.silu(self.norms[1](y)))


class Attention(nn.Module):
    """Attention over all pixels, beside what it is added to."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        parts = (
            self.qkv(self.norm(x)).flatten(2).transpose(1, 2).unflatten(-1, (3, 4, -1))
        )
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(
            mixed.transpose(2, 3).flatten(1, 2).unflatten(2, x.shape[2:])
        )


class UNet(nn.Module):
    """The noise of images, ``[images, 3, pixels, pixels]``."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)
        )
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.left = Residual(WIDTH, WIDTH)
        self.down = nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1)
        self.bottom, self.attention = (
            Residual(2 * WIDTH, 2 * WIDTH),
            Attention(2 * WIDTH),
        )
        self.up = nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, stride=2, padding=1)
        self.right = Residual(2 * WIDTH, WIDTH)
        self.last = nn.Conv2d(WIDTH, 3, 3, padding=1)

    def forward(self, images, times):
        time = self.time(times[:, None])
        left = self.left(self.stem(images), time)
        bottom = self.attention(self.bottom(self.down(left), time))
        return self.last(self.right(torch.cat([left, self.up(bottom)], 1), time))


def get_model():
    return UNet()


def get_inputs():
    return {"images": torch.randn(8, 3, PIXELS, PIXELS), "times": torch.rand(8)}


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def get_loss(noise, inputs):
    return nn.functional.mse_loss(noise.float(), inputs["images"])
