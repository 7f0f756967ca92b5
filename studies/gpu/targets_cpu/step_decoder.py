"""A training step of the decoder with grouped queries: next tokens, AdamW."""

import torch
from decoder_gqa import WORDS, get_inputs, get_model

__all__ = ["get_inputs", "get_loss", "get_model", "get_optimizer"]


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def get_loss(logits, inputs):
    following = inputs[0][:, 1:].flatten()
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, WORDS), following
    )
