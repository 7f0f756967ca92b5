"""T5-base (223 M parameters) as it is trained: dropout, bfloat16 autocast, AdamW, 8 x 256 tokens."""

import os

import torch
from transformers import T5Config, T5ForConditionalGeneration

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
BATCH, TOKENS = (2, 16) if IS_SMALL else (8, 256)
LAYERS, WIDTH = (2, 64) if IS_SMALL else (12, 768)
WORDS = 1000 if IS_SMALL else 32128


class Net(torch.nn.Module):
    """What is trained."""

    def __init__(self):
        super().__init__()
        config = T5Config(
            vocab_size=WORDS,
            d_model=WIDTH,
            d_kv=64,
            d_ff=4 * WIDTH,
            num_layers=LAYERS,
            num_heads=WIDTH // 64,
        )
        self.t5 = T5ForConditionalGeneration(config)

    def forward(self, ids, answers):
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            return self.t5(
                input_ids=ids, decoder_input_ids=answers, use_cache=False
            ).logits


def get_model():
    return Net()


def get_inputs():
    ids = torch.randint(WORDS, (BATCH, TOKENS))
    return {"ids": ids, "answers": torch.randint(WORDS, (BATCH, TOKENS // 2))}


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def get_loss(logits, inputs):
    answers = inputs["answers"]
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), answers[:, 1:].flatten()
    )
