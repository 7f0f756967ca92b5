"""GPT-2 medium (355 M parameters) as it is trained: dropout 0.1, bfloat16 autocast, AdamW."""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
BATCH, TOKENS = (2, 16) if IS_SMALL else (4, 512)
LAYERS, WIDTH = (2, 64) if IS_SMALL else (24, 1024)
WORDS = 50257


class Net(torch.nn.Module):
    """What is trained."""

    def __init__(self):
        super().__init__()
        heads = WIDTH // 64
        self.gpt = GPT2LMHeadModel(
            GPT2Config(n_layer=LAYERS, n_embd=WIDTH, n_head=heads)
        )

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
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, WORDS).float(), targets
    )
