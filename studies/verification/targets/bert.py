"""BERT with two layers and its dropout, which classifies texts, and AdamW."""

import os

import torch
from transformers import BertConfig, BertForSequenceClassification

IS_SMALL = "VERIFICATION_SMALL" in os.environ
WIDTH, TOKENS = (64, 32) if IS_SMALL else (768, 128)
WORDS, CLASSES = 1000, 8


class Net(torch.nn.Module):
    """Logits ``[texts, classes]``."""

    def __init__(self):
        super().__init__()
        config = BertConfig(
            vocab_size=WORDS,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=4 * WIDTH,
            num_labels=CLASSES,
        )
        self.bert = BertForSequenceClassification(config)

    def forward(self, ids, mask):
        return self.bert(input_ids=ids, attention_mask=mask).logits


def get_model():
    return Net()


def get_inputs():
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (8,))
    mask = (torch.arange(TOKENS) < lengths[:, None]).long()
    return {"ids": torch.randint(WORDS, (8, TOKENS)), "mask": mask}


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def get_loss(logits, inputs):
    labels = inputs["ids"][:, 0] % CLASSES
    return torch.nn.functional.cross_entropy(logits.float(), labels)
