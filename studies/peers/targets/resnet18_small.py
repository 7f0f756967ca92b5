"""ResNet-18 on small images, as pytorch-autotune's own table has it."""

import torch
import torchvision

CLASSES = 10


def get_model():
    return torchvision.models.resnet18(num_classes=CLASSES)


def get_inputs():
    return torch.randn(256, 3, 32, 32)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def get_loss(output, inputs):
    return torch.nn.functional.cross_entropy(output, labels(inputs))


def labels(inputs):
    return torch.arange(len(inputs), device=inputs.device) % CLASSES
