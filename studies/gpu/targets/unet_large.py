"""A UNet of a diffusion model (820 M parameters) as it is served: four latents of 64 x 64, bfloat16."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, PIXELS, BATCH = 320, 64, 4
TEXT, WORDS = 768, 77
STEPS = (1, 2, 4, 4)  # of width, from the top to the bottom
WITH_ATTENTION = (True, True, True, False)
HEADS = 8


class Residual(nn.Module):
    """Two convolutions with the time between them, beside what they are added to."""

    def __init__(self, before, after):
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, before), nn.GroupNorm(8, after)])
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.time, self.skip = nn.Linear(4 * WIDTH, after), nn.Conv2d(before, after, 1)

    def forward(self, x, time):
        y = self.first(F.silu(self.norms[0](x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.norms[1](y)))


class Attention(nn.Module):
    """Attention among pixels or to a text."""

    def __init__(self, width, other):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.pair = nn.Linear(other, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x, other):
        query = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        pair = self.pair(other).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, pair[0], pair[1])
        return self.out(mixed.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Attention to itself and to the text, and a feed-forward network with a gate."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.text = Attention(width, width), Attention(width, TEXT)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x, text):
        y = self.norm(x).flatten(2).transpose(1, 2)
        own = self.norms[0](y)
        y = y + self.own(own, own)
        y = y + self.text(self.norms[1](y), text)
        value, gate = self.up(self.norms[2](y)).chunk(2, dim=-1)
        y = y + self.down(value * F.gelu(gate))
        return x + y.transpose(1, 2).unflatten(2, x.shape[2:])


class Part(nn.Module):
    """A residual block, and a transformer where there is one."""

    def __init__(self, before, after, attends):
        super().__init__()
        self.residual = Residual(before, after)
        self.transformer = Transformer(after) if attends else None

    def forward(self, x, time, text):
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, text)


class UNet(nn.Module):
    """The noise of latents, ``[images, 4, pixels, pixels]``."""

    def __init__(self):
        super().__init__()
        widths = [WIDTH * step for step in STEPS]
        self.time = nn.Sequential(
            nn.Linear(1, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, 4 * WIDTH)
        )
        self.stem = nn.Conv2d(4, WIDTH, 3, padding=1)
        self.left, self.down = nn.ModuleList(), nn.ModuleList()
        self.right, self.up = nn.ModuleList(), nn.ModuleList()
        before = WIDTH
        for width, attends in zip(widths, WITH_ATTENTION, strict=True):
            two = [Part(before, width, attends), Part(width, width, attends)]
            self.left.append(nn.ModuleList(two))
            self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
            before = width
        self.bottom = nn.ModuleList(
            [Part(before, before, True), Part(before, before, False)]
        )
        for width, attends in zip(widths[::-1], WITH_ATTENTION[::-1], strict=True):
            self.up.append(nn.ConvTranspose2d(before, width, 4, stride=2, padding=1))
            three = [Part(2 * width, width, attends)]
            three += [Part(width, width, attends) for _ in range(2)]
            self.right.append(nn.ModuleList(three))
            before = width
        self.last = nn.Conv2d(WIDTH, 4, 3, padding=1)

    def forward(self, latents, times, text):
        time, x = self.time(times[:, None]), self.stem(latents)
        kept = []
        for parts, down in zip(self.left, self.down, strict=True):
            for part in parts:
                x = part(x, time, text)
            kept.append(x)
            x = down(x)
        for part in self.bottom:
            x = part(x, time, text)
        for parts, up in zip(self.right, self.up, strict=True):
            x = torch.cat([kept.pop(), up(x)], 1)
            for part in parts:
                x = part(x, time, text)
        return self.last(x)


def get_model():
    return UNet().to(torch.bfloat16).eval()


def get_inputs():
    like = {"dtype": torch.bfloat16}
    return {
        "latents": torch.randn(BATCH, 4, PIXELS, PIXELS, **like),
        "times": torch.rand(BATCH, **like),
        "text": torch.randn(BATCH, WORDS, TEXT, **like),
    }
