"""A LLaMA-shaped decoder of 1.3 billion parameters in bfloat16 that reads a prompt of 512 tokens."""

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
LAYERS, WIDTH, WORDS = (2, 64, 1000) if IS_SMALL else (24, 2048, 32000)
TOKENS = 16 if IS_SMALL else 512


class Net(torch.nn.Module):
    """What is served."""

    def __init__(self):
        super().__init__()
        config = LlamaConfig(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            intermediate_size=43 * WIDTH // 16,
            num_hidden_layers=LAYERS,
            num_attention_heads=16,
            num_key_value_heads=16,
        )
        self.llama = LlamaForCausalLM(config)

    def forward(self, ids):
        return self.llama(ids, use_cache=False).logits


def get_model():
    return Net().to(torch.bfloat16).eval()


def get_inputs():
    return (torch.randint(WORDS, (1, TOKENS)),)
