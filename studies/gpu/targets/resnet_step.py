"""ResNet-50 as it is trained: 64 images, bfloat16 autocast, channels last, SGD with momentum."""

import os

import torch
from torchvision.models import resnet50

IS_SMALL = "STUDY_SMALL" in os.environ  # to try the scripts without an accelerator
BATCH, PIXELS = (2, 64) if IS_SMALL else (64, 224)


class Net(torch.nn.Module):
    """What is trained or served."""

    def __init__(self):
        super().__init__()
        self.resnet = resnet50()

    def forward(self, images):
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            return self.resnet(images)


def get_model():
    return Net().to(memory_format=torch.channels_last)


def get_inputs():
    images = torch.randn(BATCH, 3, PIXELS, PIXELS)
    return (images.to(memory_format=torch.channels_last),)


def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)


def get_loss(logits, inputs):
    labels = torch.arange(len(logits), device=logits.device)
    return torch.nn.functional.cross_entropy(logits.float(), labels)
