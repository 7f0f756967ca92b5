"""ViT-B/16 as it is served: eight images, bfloat16."""

import os

import torch
from transformers import ViTConfig, ViTForImageClassification

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
SIZES = (
    {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 96}
    if IS_SMALL
    else {}
)
BATCH, PIXELS = (2, 224) if IS_SMALL else (8, 224)


class Net(torch.nn.Module):
    """What is trained or served."""

    def __init__(self):
        super().__init__()
        self.vit = ViTForImageClassification(ViTConfig(num_labels=1000, **SIZES))

    def forward(self, pixels):
        return self.vit(pixels).logits


def get_model():
    return Net().to(torch.bfloat16).eval()


def get_inputs():
    return (torch.randn(BATCH, 3, PIXELS, PIXELS, dtype=torch.bfloat16),)
