"""GPT-2 with two layers of its full width, and AdamW; its own vocabulary on a GPU.

``tokens`` is the same model that returns the likeliest token at each place, and nothing else.
"""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

IS_SMALL = "VERIFICATION_SMALL" in os.environ
WIDTH, WORDS, TOKENS = (64, 1000, 32) if IS_SMALL else (768, 50257, 128)


class Net(torch.nn.Module):
    """Logits ``[texts, tokens, words]``."""

    def __init__(self):
        super().__init__()
        sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}
        rates = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        self.gpt = GPT2LMHeadModel(GPT2Config(**sizes, **rates))

    def forward(self, ids):
        return self.gpt(ids, use_cache=False).logits


class Tokens(Net):
    """Tokens ``[texts, tokens]``, as integers."""

    def forward(self, ids):
        return super().forward(ids).argmax(-1)


def get_model():
    return Net()


def tokens():
    return Tokens()


def get_inputs():
    return (torch.randint(WORDS, (4, TOKENS)),)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


def get_loss(logits, inputs):
    targets = inputs[0][:, 1:].flatten()
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), targets
    )
