"""BERT-base as it is fine-tuned: 16 sentences of 128 tokens, bfloat16 autocast, AdamW."""

import os

import torch
from transformers import BertConfig, BertForSequenceClassification

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
BATCH, TOKENS = (2, 16) if IS_SMALL else (16, 128)
SIZES = (
    {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 96}
    if IS_SMALL
    else {}
)


class Net(torch.nn.Module):
    """What is trained or served."""

    def __init__(self):
        super().__init__()
        self.bert = BertForSequenceClassification(BertConfig(**SIZES))

    def forward(self, input_ids, attention_mask):
        with torch.autocast(input_ids.device.type, dtype=torch.bfloat16):
            return self.bert(input_ids, attention_mask=attention_mask).logits


def get_model():
    return Net()


def get_inputs():
    return {
        "input_ids": torch.randint(30522, (BATCH, TOKENS)),
        "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.long),
    }


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=2e-5)


def get_loss(logits, inputs):
    labels = inputs["input_ids"][:, 0] % 2
    return torch.nn.functional.cross_entropy(logits.float(), labels)
