"""ResNet-50, and SGD with momentum; on a CPU one block in each stage."""

from resnet18 import IS_SMALL, Net, get_inputs, get_loss, get_optimizer

__all__ = ["get_inputs", "get_loss", "get_model", "get_optimizer"]

DEPTHS = [1, 1, 1, 1] if IS_SMALL else [3, 4, 6, 3]
WIDTHS = [32, 64, 128, 256] if IS_SMALL else [256, 512, 1024, 2048]


def get_model():
    return Net(DEPTHS, "bottleneck", WIDTHS)
