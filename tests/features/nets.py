"""Small models with a known gain, and backends that are slower on purpose or the same again.

A block waits for what nobody uses, which every compiler drops, then for its own work. Waiting
sleeps, so that other programs hardly change what a call takes. Each backend that is right makes a
call about three times as fast, whatever the machine.
"""

import time

import torch
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.backends.registry import _COMPILER_FNS

WIDTH, CHANNELS, BLOCKS = 64, 4, 2
UNUSED_S, WORK_S = 4e-3, 2e-3  # of each block
SLOW_S = 0.03  # of each graph that a slow backend makes
_PRODUCTS = 6  # of large matrices, in place of waiting


@torch.library.custom_op("features::wait", mutates_args=())
def wait(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


wait.register_fake(lambda x, seconds: torch.empty_like(x))
wait.register_autograd(lambda ctx, grad: (grad, None))


class Block(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.second = layer(), layer()

    def forward(self, x):
        wait(x, UNUSED_S)
        x = wait(x, WORK_S)
        return x + self.second(torch.relu(self.first(x)))


class Products(torch.nn.Module):
    """The same of operators that ONNX has: products of large matrices, most of them unused."""

    def __init__(self, layer):
        super().__init__()
        self.first, self.second = layer(), layer()
        self.large = torch.nn.Parameter(torch.rand(384, 384) / 384)

    def forward(self, x):
        kept = self._product(x, 1)
        self._product(x, _PRODUCTS)
        return x + self.second(torch.relu(self.first(x))) + kept

    def _product(self, x, times):
        large = self.large + x.mean()
        for _ in range(times):
            large = large @ self.large
        return large.mean()


def layers():
    """Two blocks with one linear layer behind the other."""
    return torch.nn.Sequential(
        *(Block(lambda: torch.nn.Linear(WIDTH, WIDTH)) for _ in range(BLOCKS))
    )


def products():
    return torch.nn.Sequential(
        *(Products(lambda: torch.nn.Linear(WIDTH, WIDTH)) for _ in range(BLOCKS))
    )


def convolutions():
    """Two blocks of convolutions over images that are given as rows."""
    return torch.nn.Sequential(
        torch.nn.Unflatten(-1, (CHANNELS, 4, 4)),
        *(Block(_convolution) for _ in range(BLOCKS)),
        torch.nn.Flatten(),
    )


def _convolution():
    return torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)


def rows(batch_size):
    return torch.randn(batch_size, WIDTH)


class Waiting(torch.optim.SGD):
    """An optimizer that waits as the blocks do, for its own work and for what a compiler skips.

    Dynamo prepares the groups of an optimizer when it compiles a step, and never in a call.
    """

    def _init_group(self, *args, **kwargs):
        wait(self.param_groups[0]["params"][0].detach(), BLOCKS * UNUSED_S)
        return super()._init_group(*args, **kwargs)

    def step(self, closure=None):
        self.waited = wait(self.param_groups[0]["params"][0].detach(), BLOCKS * WORK_S)
        return super().step(closure)


# Backends ----------------------------------------------------------------------------------------


def register_backends():
    """Those of this file, where they are not there yet."""
    found = {
        "aot_eager_again": aot_eager,
        "aot_eager_once_more": aot_eager,
        "slower": aot_autograd(fw_compiler=_slowly),
    }
    for name in found.keys() - _COMPILER_FNS.keys():
        register_backend(found[name], name=name)


def _slowly(graph, inputs):
    def run(*args):
        time.sleep(SLOW_S)
        return graph.forward(*args)

    return run
