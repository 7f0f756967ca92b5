"""ViT-B/16 as it is trained: 32 images, bfloat16 autocast, AdamW."""

import os

import torch
from transformers import ViTConfig, ViTForImageClassification

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
SIZES = (
    {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 96}
    if IS_SMALL
    else {}
)
BATCH = 2 if IS_SMALL else 32


class Net(torch.nn.Module):
    """What is trained or served."""

    def __init__(self):
        super().__init__()
        self.vit = ViTForImageClassification(ViTConfig(num_labels=1000, **SIZES))

    def forward(self, pixels):
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16):
            return self.vit(pixels).logits


def get_model():
    return Net()


def get_inputs():
    return (torch.randn(BATCH, 3, 224, 224),)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def get_loss(logits, inputs):
    labels = torch.arange(len(logits), device=logits.device)
    return torch.nn.functional.cross_entropy(logits.float(), labels)
