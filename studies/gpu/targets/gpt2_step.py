"""GPT-2 with six layers (82 M parameters), a training step in bfloat16 autocast with AdamW."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, TOKENS = 8, 512


class Net(torch.nn.Module):
    """What is trained or served."""

    def __init__(self):
        super().__init__()
        self.gpt = GPT2LMHeadModel(
            GPT2Config(n_layer=6, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
        )

    def forward(self, ids):
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            return self.gpt(ids, use_cache=False).logits


def get_model():
    return Net()


def get_inputs():
    return (torch.randint(0, 50257, (BATCH, TOKENS)),)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


def get_loss(logits, inputs):
    targets = inputs[0][:, 1:].reshape(-1)
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, 50257).float(), targets
    )
