"""A LLaMA of 350 M parameters, a training step in bfloat16 autocast with AdamW."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, TOKENS, WORDS = 4, 1024, 32000


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        config = LlamaConfig(
            vocab_size=WORDS,
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=22,
            num_attention_heads=16,
            num_key_value_heads=16,
        )
        self.llama = LlamaForCausalLM(config)

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
