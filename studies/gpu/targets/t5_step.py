"""T5-base (223 M parameters) as it is trained: dropout, bfloat16 autocast, AdamW, 8 x 256 tokens."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

BATCH, TOKENS, WORDS = 8, 256, 32128


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        config = T5Config(
            vocab_size=WORDS,
            d_model=768,
            d_kv=64,
            d_ff=3072,
            num_layers=12,
            num_heads=12,
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
