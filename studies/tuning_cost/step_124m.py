"""A decoder of 124 M parameters as it is trained: dropout 0.1, float32, Adam, 2 x 128 tokens."""

import torch
from torch import nn
from torch.nn import functional as F

WORDS, WIDTH, LAYERS, HEADS, TOKENS = 50257, 768, 12, 12, 128


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        parts = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(F.gelu(self.up(self.between(x)))))


class Decoder(nn.Module):
    """Tokens to the loss of the next ones; the embedding is the head."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.words.weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def get_model():
    return Decoder()


def get_inputs():
    return (torch.randint(WORDS, (2, TOKENS)),)


def get_loss(loss, inputs):
    return loss


def get_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=1e-4)
