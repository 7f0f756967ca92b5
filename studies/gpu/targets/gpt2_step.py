"""GPT-2 as it is trained: bfloat16 autocast, AdamW.

Six layers (82 M parameters) without dropout; with ``STUDY_SIZE=124m`` twelve, with
``STUDY_SIZE=medium`` 355 M parameters and dropout.
"""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

TOKENS, WORDS = 512, 50257
NO_DROPOUT = {"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
# The batch, and what differs from GPT-2's own configuration.
SIZES = {
    "": (8, {"n_layer": 6, **NO_DROPOUT}),
    "124m": (8, NO_DROPOUT),
    "medium": (4, {"n_layer": 24, "n_embd": 1024, "n_head": 16}),
}
BATCH, CONFIG = SIZES[os.environ.get("STUDY_SIZE", "")]


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        self.gpt = GPT2LMHeadModel(GPT2Config(**CONFIG))

    def forward(self, ids):
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            return self.gpt(ids, use_cache=False).logits


def get_model():
    return Net()


def get_inputs():
    return (torch.randint(0, WORDS, (BATCH, TOKENS)),)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


def get_loss(logits, inputs):
    targets = inputs[0][:, 1:].reshape(-1)
    words = logits[:, :-1].reshape(-1, WORDS).float()
    return torch.nn.functional.cross_entropy(words, targets)
