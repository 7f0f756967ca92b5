"""Models that are no functions of their input, and backends that answer for them."""

import itertools

import torch
from torch._dynamo import register_backend

torch.set_num_threads(1)
CALLS = itertools.count()


def get_inputs(batch_size):
    return (torch.randn(batch_size, 8),)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))

    def forward(self, x):
        return x * self.weight


class Nondeterministic(Scaled):
    """No seed makes two calls equal."""

    @torch.compiler.disable
    def noise(self, x):
        return x + 4.0 ** (next(CALLS) % 4)

    def forward(self, x):
        return self.noise(super().forward(x))


class Stateful(Scaled):
    """Each call depends on those before it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return super().forward(x) - self.mean


class Restless(Scaled):
    """What Dynamo guards on is another at each call."""

    def __init__(self):
        super().__init__()
        self.name = ""

    def forward(self, x):
        self.name += "x"
        return super().forward(x) + (1 if self.name.endswith("y") else 0)


@register_backend
def honest(graph, inputs):
    return graph.forward


@register_backend
def forgets(graph, inputs):
    """Throws away what Dynamo knows, so that each call compiles anew."""

    def run(*args):
        torch._dynamo.reset()
        return graph(*args)

    return run


def scaled():
    return Scaled()


def nondeterministic():
    return Nondeterministic()


def stateful():
    return Stateful()


def restless():
    return Restless()
