"""A transformer encoder: six equal blocks over a short sequence.

autocompile tune examples/transformer.py
"""

import torch
from torch import nn

WIDTH, LENGTH, WORDS = 128, 32, 1000


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, nhead=4, dim_feedforward=512, batch_first=True
            )
            for _ in range(6)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def get_model():
    return Encoder()


def get_inputs(batch_size):
    return {"tokens": torch.randint(WORDS, (batch_size, LENGTH))}


def get_loss(output, inputs):
    return nn.functional.cross_entropy(output.flatten(0, 1), inputs["tokens"].flatten())
