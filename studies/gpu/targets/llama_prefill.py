"""A LLaMA-shaped decoder that reads a prompt, bfloat16.

12 layers of 1024 and 256 tokens; with ``STUDY_SIZE=1b`` 1.3 billion parameters and 512.
"""

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"": (12, 1024, 2816, 256), "1b": (24, 2048, 5504, 512)}
LAYERS, WIDTH, BETWEEN, TOKENS = SIZES[os.environ.get("STUDY_SIZE", "")]
WORDS = 32000


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        config = LlamaConfig(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            intermediate_size=BETWEEN,
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
