"""ViT-B/16 as it is trained: 32 images, bfloat16 autocast, AdamW; ``STUDY_SIZE=large``: ViT-L."""

import os

import torch
from transformers import ViTConfig, ViTForImageClassification

LARGE = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
}
CONFIG = {"": {}, "large": LARGE}[os.environ.get("STUDY_SIZE", "")]


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        self.vit = ViTForImageClassification(ViTConfig(num_labels=1000, **CONFIG))

    def forward(self, pixels):
        with torch.autocast(pixels.device.type, dtype=torch.bfloat16):
            return self.vit(pixels).logits


def get_model():
    return Net()


def get_inputs():
    return (torch.randn(32, 3, 224, 224),)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def get_loss(logits, inputs):
    labels = torch.arange(len(logits), device=logits.device)
    return torch.nn.functional.cross_entropy(logits.float(), labels)
