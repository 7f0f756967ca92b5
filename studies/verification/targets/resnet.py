"""ResNet-18 and ResNet-50, and SGD with momentum; on a CPU thin, ResNet-50 of one block a stage.

Convolutions are in TF32 on a GPU, as is torch's default.
"""

import os

import torch
from transformers import ResNetConfig, ResNetForImageClassification

IS_SMALL = "VERIFICATION_SMALL" in os.environ
PIXELS, IMAGES, CLASSES = (64, 8, 10) if IS_SMALL else (96, 16, 100)


class Net(torch.nn.Module):
    """Logits ``[images, classes]``."""

    def __init__(self, depths, kind, widths):
        super().__init__()
        config = ResNetConfig(
            embedding_size=widths[0] if kind == "basic" else 64,
            depths=depths,
            hidden_sizes=widths,
            layer_type=kind,
            num_labels=CLASSES,
        )
        self.resnet = ResNetForImageClassification(config)

    def forward(self, images):
        return self.resnet(images).logits


def get_model():
    widths = [16, 32, 64, 128] if IS_SMALL else [64, 128, 256, 512]
    return Net([2, 2, 2, 2], "basic", widths)


def resnet50():
    depths = [1, 1, 1, 1] if IS_SMALL else [3, 4, 6, 3]
    widths = [32, 64, 128, 256] if IS_SMALL else [256, 512, 1024, 2048]
    return Net(depths, "bottleneck", widths)


def get_inputs():
    return (torch.randn(IMAGES, 3, PIXELS, PIXELS),)


def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)


def get_loss(logits, inputs):
    labels = torch.arange(len(logits), device=logits.device) % CLASSES
    return torch.nn.functional.cross_entropy(logits.float(), labels)
