"""ResNet-50 on images of 224 pixels, as pytorch-autotune's own table has it."""

import torch
import torchvision

CLASSES = 1000


def get_model():
    return torchvision.models.resnet50(num_classes=CLASSES)


def get_inputs():
    return torch.randn(64, 3, 224, 224)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def get_loss(output, inputs):
    return torch.nn.functional.cross_entropy(output, labels(inputs))


def labels(inputs):
    return torch.arange(len(inputs), device=inputs.device) % CLASSES
