"""A LLaMA of 350 M parameters, a training step in bfloat16 autocast with AdamW."""

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
LAYERS, WIDTH = (2, 64) if IS_SMALL else (22, 1024)
BATCH, TOKENS, WORDS = (2, 16, 1000) if IS_SMALL else (4, 1024, 32000)


class Net(torch.nn.Module):
    """What is trained."""

    def __init__(self):
        super().__init__()
        self.llama = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=WORDS,
                hidden_size=WIDTH,
                intermediate_size=11 * WIDTH // 4,
                num_hidden_layers=LAYERS,
                num_attention_heads=16,
                num_key_value_heads=16,
            )
        )

    def forward(self, ids):
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            return self.llama(ids, use_cache=False).logits


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
