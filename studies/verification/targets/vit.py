"""A ViT with two layers, and AdamW."""

import os

import torch
from transformers import ViTConfig, ViTForImageClassification

IS_SMALL = "VERIFICATION_SMALL" in os.environ
WIDTH, PIXELS = (64, 32) if IS_SMALL else (768, 112)
CLASSES = 100


class Net(torch.nn.Module):
    """Logits ``[images, classes]``."""

    def __init__(self):
        super().__init__()
        config = ViTConfig(
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=4 * WIDTH,
            image_size=PIXELS,
            patch_size=8,
            num_labels=CLASSES,
        )
        self.vit = ViTForImageClassification(config)

    def forward(self, images):
        return self.vit(images).logits


def get_model():
    return Net()


def get_inputs():
    return (torch.randn(8, 3, PIXELS, PIXELS),)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def get_loss(logits, inputs):
    labels = torch.arange(len(logits), device=logits.device)
    return torch.nn.functional.cross_entropy(logits.float(), labels)
