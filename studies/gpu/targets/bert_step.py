"""BERT-base as it is fine-tuned: 16 sentences of 128 tokens, bfloat16 autocast, AdamW."""

import torch
from transformers import BertConfig, BertForSequenceClassification

BATCH, TOKENS = 16, 128


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        self.bert = BertForSequenceClassification(BertConfig())

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
