"""GPT-2 (124 M parameters), a training step in bfloat16 autocast with AdamW."""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
LAYERS, WIDTH = (2, 48) if IS_SMALL else (12, 768)
BATCH, TOKENS, WORDS = (2, 16, 1000) if IS_SMALL else (8, 512, 50257)


class Net(torch.nn.Module):
    """What is trained."""

    def __init__(self):
        super().__init__()
        self.gpt = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=WORDS,
                n_layer=LAYERS,
                n_embd=WIDTH,
                attn_pdrop=0,
                embd_pdrop=0,
                resid_pdrop=0,
            )
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
    words = logits[:, :-1].reshape(-1, WORDS).float()
    return torch.nn.functional.cross_entropy(words, targets)
