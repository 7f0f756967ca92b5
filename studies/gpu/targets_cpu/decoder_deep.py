"""A narrow decoder of twelve blocks (2 M parameters): LayerNorm, GELU, learned positions."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, BLOCKS, LENGTH, WORDS = 120, 6, 12, 40, 300


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Decoder(nn.Module):
    """Tokens to logits of the next ones."""

    def __init__(self):
        super().__init__()
        self.words, self.places = (
            nn.Embedding(WORDS, WIDTH),
            nn.Embedding(LENGTH, WIDTH),
        )
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def get_model():
    return Decoder().eval()


def get_inputs():
    return (torch.randint(WORDS, (4, LENGTH)),)
