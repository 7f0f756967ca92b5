"""ConvNeXt-tiny as it is served: eight images, bfloat16."""

import os

import torch
from torchvision.models import convnext_tiny

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
BATCH, PIXELS = (1, 64) if IS_SMALL else (8, 224)


def get_model():
    return convnext_tiny().to(torch.bfloat16).eval()


def get_inputs():
    return (torch.randn(BATCH, 3, PIXELS, PIXELS, dtype=torch.bfloat16),)
