"""A LLaMA-shaped decoder writes one token: keys and values stand in a static cache, bfloat16.

12 layers of 1024 and 512 positions; with ``STUDY_SIZE=1b`` 1.4 billion parameters and 1,024. A call
writes what belongs to its position and reads the rest, so that it can be repeated.
"""

import os

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {"": (12, 1024, 512), "1b": (24, 2048, 1024)}
LAYERS, WIDTH, POSITIONS = SIZES[os.environ.get("STUDY_SIZE", "")]
POSITION = POSITIONS // 2
HEADS, WORDS = 16, 32000
SIZE = WIDTH // HEADS


def rotated(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 11 * WIDTH // 4, bias=False)
        self.up = nn.Linear(WIDTH, 11 * WIDTH // 4, bias=False)
        self.down = nn.Linear(11 * WIDTH // 4, WIDTH, bias=False)
        self.register_buffer("keys", torch.randn(1, HEADS, POSITIONS, SIZE))
        self.register_buffer("values", torch.randn(1, HEADS, POSITIONS, SIZE))

    def forward(self, x, position, cos, sin, mask):
        parts = (
            self.qkv(self.before(x)).view(1, 1, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        )
        query, key, value = parts
        self.keys.index_copy_(2, position, rotated(key, cos, sin))
        self.values.index_copy_(2, position, value)
        mixed = F.scaled_dot_product_attention(
            rotated(query, cos, sin), self.keys, self.values, attn_mask=mask
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, WIDTH))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Tokens to logits of the next ones."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        turns = 10000 ** (-torch.arange(0, SIZE, 2) / SIZE)
        angles = torch.outer(torch.arange(POSITIONS), torch.cat((turns, turns)))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("seen", torch.ones(POSITIONS, POSITIONS).tril().bool())

    def forward(self, token, position):
        x = self.embedding(token)
        cos, sin = self.cos[position], self.sin[position]
        mask = self.seen[position][None, None]
        for block in self.blocks:
            x = block(x, position, cos, sin, mask)
        return self.head(self.norm(x))


def get_model():
    return Decoder().to(torch.bfloat16).eval()


def get_inputs():
    return {"token": torch.randint(WORDS, (1, 1)), "position": torch.tensor([POSITION])}
