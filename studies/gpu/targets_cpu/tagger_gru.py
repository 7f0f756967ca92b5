"""A tagger: an embedding, a GRU of two layers in both directions, a label for each word."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1500, 72)
        self.gru = nn.GRU(72, 88, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.LayerNorm(176), nn.Linear(176, 64), nn.ReLU())
        self.labels = nn.Linear(64, 17)

    def forward(self, tokens):
        return self.labels(self.head(self.gru(self.words(tokens))[0]))


def get_model():
    return Tagger().eval()


def get_inputs():
    return (torch.randint(1500, (8, 26)),)
