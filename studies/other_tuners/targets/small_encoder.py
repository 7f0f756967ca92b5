"""A transformer that classifies short sequences: two layers of width 128."""

import torch
from torch import nn

CLASSES, WIDTH = 100, 128


class Encoder(nn.Module):
    """Its head reads the mean over the sequence."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.layers(x).mean(1))


def get_model():
    return Encoder()


def get_inputs():
    return torch.randn(8, 64, WIDTH)
