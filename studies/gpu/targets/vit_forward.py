"""ViT-B/16 as it is served: eight images, bfloat16."""

import torch
from transformers import ViTConfig, ViTForImageClassification


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        self.vit = ViTForImageClassification(ViTConfig(num_labels=1000))

    def forward(self, pixels):
        return self.vit(pixels).logits


def get_model():
    return Net().to(torch.bfloat16).eval()


def get_inputs():
    return (torch.randn(8, 3, 224, 224, dtype=torch.bfloat16),)
