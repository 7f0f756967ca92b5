"""A transformer encoder of torch's own layers, as for embeddings of short texts."""

import torch
from torch import nn

WIDTH, LENGTH, WORDS = 128, 32, 1000


class Encoder(nn.Module):
    """Tokens of shape (batch, 32) to one vector of length 1 for each text."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, nhead=4, dim_feedforward=512, batch_first=True
            )
            for _ in range(4)
        )

    def forward(self, tokens):
        hidden = self.embedding(tokens) + self.positions
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.normalize(hidden.mean(1), dim=-1)


def get_model():
    return Encoder()


def get_inputs(batch_size):
    return (torch.randint(WORDS, (batch_size, LENGTH)),)
