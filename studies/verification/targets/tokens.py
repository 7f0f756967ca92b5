"""GPT-2 that returns the likeliest token at each place, and nothing else."""

import torch
from gpt2 import Net as Logits
from gpt2 import get_inputs

__all__ = ["get_inputs", "get_model"]


class Net(torch.nn.Module):
    """Tokens ``[texts, tokens]``, as integers."""

    def __init__(self):
        super().__init__()
        self.logits = Logits()

    def forward(self, ids):
        return self.logits(ids).argmax(-1)


def get_model():
    return Net()
