"""A small MLP as policies in robotics use it, for which the settings of Inductor are almost tied.

autocompile tune studies/truth/mlp.py
"""

import torch
from torch import nn


def get_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 256),
        nn.ELU(),
        nn.Linear(256, 256),
        nn.ELU(),
        nn.Linear(256, 8),
    )


def get_inputs(batch_size: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch_size, 64),)
