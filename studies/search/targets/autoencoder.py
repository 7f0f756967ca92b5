"""A convolutional autoencoder: strided convolutions down, transposed ones up."""

import torch
from torch import nn


def down(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 4, stride=2, padding=1), nn.SiLU())


def up(before, after):
    return nn.Sequential(
        nn.ConvTranspose2d(before, after, 4, stride=2, padding=1), nn.SiLU()
    )


class Autoencoder(nn.Module):
    """Images of shape (batch, 3, 32, 32) to the same."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(down(3, 32), down(32, 64), down(64, 128))
        self.inner = nn.Sequential(nn.Linear(2048, 64), nn.SiLU(), nn.Linear(64, 2048))
        self.decoder = nn.Sequential(
            up(128, 64), up(64, 32), up(32, 16), nn.Conv2d(16, 3, 1)
        )

    def forward(self, images):
        features = self.encoder(images)
        inner = self.inner(features.flatten(1)).view_as(features)
        return torch.sigmoid(self.decoder(inner))


def get_model():
    return Autoencoder()


def get_inputs(batch_size):
    return (torch.rand(batch_size, 3, 32, 32),)
