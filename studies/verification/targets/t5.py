"""A T5 with two layers in its encoder and in its decoder, and AdamW."""

import os

import torch
from transformers import T5Config, T5ForConditionalGeneration

IS_SMALL = "VERIFICATION_SMALL" in os.environ
WIDTH, TOKENS = (64, 24) if IS_SMALL else (512, 96)
WORDS = 1000


class Net(torch.nn.Module):
    """Logits ``[texts, tokens, words]``."""

    def __init__(self):
        super().__init__()
        config = T5Config(
            vocab_size=WORDS,
            d_model=WIDTH,
            d_kv=WIDTH // 4,
            d_ff=2 * WIDTH,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            dropout_rate=0.0,
        )
        self.t5 = T5ForConditionalGeneration(config)

    def forward(self, ids, targets):
        found = self.t5(input_ids=ids, decoder_input_ids=targets, use_cache=False)
        return found.logits


def get_model():
    return Net()


def get_inputs():
    return {
        "ids": torch.randint(WORDS, (4, TOKENS)),
        "targets": torch.randint(WORDS, (4, TOKENS // 2)),
    }


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def get_loss(logits, inputs):
    targets = inputs["targets"][:, 1:].flatten()
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), targets
    )
