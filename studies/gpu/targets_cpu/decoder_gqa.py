"""A decoder with grouped queries, rotated positions, RMSNorm and SwiGLU."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, GROUPS, BLOCKS, LENGTH, WORDS = 192, 6, 2, 5, 56, 800
SIZE = WIDTH // HEADS


def rotated(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.value = nn.Linear(WIDTH, GROUPS * SIZE, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 512, bias=False)
        self.up = nn.Linear(WIDTH, 512, bias=False)
        self.down = nn.Linear(512, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        h = self.before(x)
        query = self.query(h).view(batch, length, HEADS, SIZE).transpose(1, 2)
        key = self.key(h).view(batch, length, GROUPS, SIZE).transpose(1, 2)
        value = self.value(h).view(batch, length, GROUPS, SIZE).transpose(1, 2)
        key = rotated(key, cos, sin).repeat_interleave(HEADS // GROUPS, dim=1)
        value = value.repeat_interleave(HEADS // GROUPS, dim=1)
        mixed = F.scaled_dot_product_attention(
            rotated(query, cos, sin), key, value, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Tokens to logits of the next ones."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        turns = 10000 ** (-torch.arange(0, SIZE, 2) / SIZE)
        angles = torch.outer(torch.arange(LENGTH), torch.cat((turns, turns)))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def get_model():
    return Decoder()


def get_inputs():
    return (torch.randint(WORDS, (2, LENGTH)),)
