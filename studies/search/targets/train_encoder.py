"""A training step of a transformer encoder: forward, cross entropy of tokens, backward, AdamW."""

import torch
from torch import nn

WIDTH, LENGTH, WORDS = 64, 16, 500


class Encoder(nn.Module):
    """Tokens of shape (batch, 16) to logits of the same tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, nhead=4, dim_feedforward=256, dropout=0.0, batch_first=True
            )
            for _ in range(2)
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


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def get_loss(output, inputs):
    return nn.functional.cross_entropy(output.flatten(0, 1), inputs["tokens"].flatten())
