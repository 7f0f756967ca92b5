"""A model of blocks for FSDP2, whose compiled form lies as LIE says; eager mode is honest."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp

LIE = os.environ.get("TEST_LIE", "")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.back = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.back(torch.relu(self.wide(x)))


class Net(nn.Module):
    """Two blocks between layers whose rows two ranks do not share evenly."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += x.mean().detach()
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def get_model():
    return Net()


def get_inputs(batch_size):
    return torch.randn(batch_size, 8)


def get_loss(output, inputs):
    return output.square().mean()


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


_honest = fsdp.fully_shard


def _lying(module, **given):
    made = _honest(module, **given)
    if isinstance(made, Net):
        made.register_forward_pre_hook(torch.compiler.disable(_lie), prepend=True)
        made.register_forward_hook(torch.compiler.disable(_lie_about_gradients))
    return made


def _lie(module, args):
    if vars(module).get("_compiled_call_impl") is None:
        return None
    if LIE == "left_out":
        module.blocks[0].set_requires_gradient_sync(False)
    if LIE == "others_data":
        (x,) = args
        x = x.clone()
        dist.broadcast(x, 0)
        return (x,)
    return None


def _lie_about_gradients(module, args, output):
    """Divide them by another number, as ``set_gradient_divide_factor`` does where it can (NCCL)."""
    if LIE == "wrong_number" and vars(module).get("_compiled_call_impl") is not None:
        count = dist.get_world_size()
        output.register_hook(lambda gradient: gradient * count / (count + 1))


if LIE:
    fsdp.fully_shard = _lying
