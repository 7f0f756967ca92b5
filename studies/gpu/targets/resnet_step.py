"""ResNet-50 as it is trained: 64 images, bfloat16 autocast, channels last, SGD with momentum."""

import torch
from torchvision.models import resnet50


class Net(torch.nn.Module):
    """The network."""

    def __init__(self):
        super().__init__()
        self.resnet = resnet50()

    def forward(self, images):
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            return self.resnet(images)


def get_model():
    return Net().to(memory_format=torch.channels_last)


def get_inputs():
    images = torch.randn(64, 3, 224, 224)
    return (images.to(memory_format=torch.channels_last),)


def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)


def get_loss(logits, inputs):
    labels = torch.arange(len(logits), device=logits.device)
    return torch.nn.functional.cross_entropy(logits.float(), labels)
