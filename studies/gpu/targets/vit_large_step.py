"""ViT-L (304 M parameters), 32 images of 224 pixels, bfloat16 autocast, AdamW."""

import os

import torch
from transformers import ViTConfig, ViTForImageClassification

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
BATCH, LAYERS, WIDTH = (2, 2, 64) if IS_SMALL else (32, 24, 1024)


class Net(torch.nn.Module):
    """What is trained."""

    def __init__(self):
        super().__init__()
        self.vit = ViTForImageClassification(
            ViTConfig(
                num_hidden_layers=LAYERS,
                hidden_size=WIDTH,
                intermediate_size=4 * WIDTH,
                num_attention_heads=WIDTH // 64,
                num_labels=1000,
            )
        )

    def forward(self, images):
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            return self.vit(images).logits


def get_model():
    return Net()


def get_inputs():
    return (torch.randn(BATCH, 3, 224, 224),)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def get_loss(logits, inputs):
    labels = torch.arange(BATCH, device=logits.device)
    return torch.nn.functional.cross_entropy(logits.float(), labels)
