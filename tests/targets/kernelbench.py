"""A file in the layout of KernelBench."""

import torch

BATCH_SIZE = 5


class Model(torch.nn.Module):
    def __init__(self, width, slope):
        super().__init__()
        self.linear = torch.nn.Linear(width, 2)
        self.slope = slope

    def forward(self, a, b):
        return torch.nn.functional.leaky_relu(
            self.linear(a) + self.linear(b), self.slope
        )


def get_inputs():
    return [torch.randn(BATCH_SIZE, 6), torch.randn(BATCH_SIZE, 6)]


def get_init_inputs():
    return [6, 0.25]
