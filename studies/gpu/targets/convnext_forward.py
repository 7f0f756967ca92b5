"""ConvNeXt-tiny as it is served: eight images, bfloat16."""

import torch
from torchvision.models import convnext_tiny


def get_model():
    return convnext_tiny().to(torch.bfloat16).eval()


def get_inputs():
    return (torch.randn(8, 3, 224, 224, dtype=torch.bfloat16),)
