"""A tagger that steps through a sentence by itself: an embedding, two GRU cells, a label a word."""

import torch
from torch import nn


class Tagger(nn.Module):
    """Words to logits of labels."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1500, 72)
        self.lower, self.upper = nn.GRUCell(72, 88), nn.GRUCell(88, 88)
        self.head = nn.Sequential(nn.LayerNorm(88), nn.Linear(88, 64), nn.ReLU())
        self.labels = nn.Linear(64, 17)

    def forward(self, tokens):
        words = self.words(tokens)
        lower = upper = words.new_zeros(len(tokens), 88)
        outputs = []
        for step in range(tokens.shape[1]):
            lower = self.lower(words[:, step], lower)
            upper = self.upper(lower, upper)
            outputs.append(upper)
        return self.labels(self.head(torch.stack(outputs, dim=1)))


def get_model():
    return Tagger().eval()


def get_inputs():
    return (torch.randint(1500, (8, 14)),)
