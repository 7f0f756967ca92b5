"""A recurrent policy: an MLP, an LSTM over 16 steps, and two heads."""

import torch
from torch import nn

# Else Dynamo leaves recurrent layers to eager mode, and here all that calls one with them.
torch._dynamo.config.allow_rnn = True


class Policy(nn.Module):
    """Observations of shape (batch, 16, 24) to logits and values."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(24, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()
        )
        self.memory = nn.LSTM(128, 128, batch_first=True)
        self.actions, self.value = nn.Linear(128, 6), nn.Linear(128, 1)

    def forward(self, observations):
        features, _ = self.memory(self.encoder(observations))
        return {
            "actions": self.actions(features),
            "value": self.value(features).squeeze(-1),
        }


def get_model():
    return Policy()


def get_inputs(batch_size):
    return (torch.randn(batch_size, 16, 24),)
