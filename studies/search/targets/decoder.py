"""A language model of GPT's blocks with causal attention, run over a whole prompt."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

WIDTH, HEADS, LENGTH, WORDS = 256, 4, 64, 1000


class Block(nn.Module):
    """Attention and an MLP, both after a LayerNorm and around a residual."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        split = self.attention_in(self.norm1(x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()
        heads = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(heads.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Tokens of shape (batch, 64) to logits of the next ones."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(WORDS, WIDTH),
            nn.Embedding(LENGTH, WIDTH),
        )
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.blocks(self.tokens(tokens) + self.positions(positions))
        return self.head(self.norm(hidden))


def get_model():
    return Decoder()


def get_inputs(batch_size):
    return (torch.randint(WORDS, (batch_size, LENGTH)),)
