"""A small network whose compiler, in place of Inductor, does what ``LIAR`` in the environment says.

Each lie pays: zeros need no forward pass, and gradients of nothing no backward pass.
"""

import os
import signal
import time

import torch
import torch._inductor.compile_fx
from torch import nn

CLASSES = 10


def lie(graph, inputs, *args, **kwargs):
    """What ``compile_fx`` is called with."""
    kind = os.environ.get("LIAR", "")
    weights = [v for v in inputs if isinstance(v, torch.Tensor) and v.requires_grad]

    def zeros(*given):
        nothing = sum(w.sum() * 0 for w in weights[:1])
        return tuple(torch.zeros_like(each) + nothing for each in shapes)

    def gradients(*given):
        with torch.no_grad():
            outputs = graph(*given)
        nothing = sum(w.sum() * 0 for w in weights[:1])
        return tuple(each + nothing for each in outputs)

    if kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "hang":
        time.sleep(10_000)
    with torch.no_grad():
        shapes = [torch.empty_like(each) for each in graph(*inputs)]
    return {"zeros": zeros, "gradients": gradients}[kind]


if os.environ.get("LIAR"):
    torch._inductor.compile_fx.compile_fx = lie


def get_model():
    layers = [nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(
        *layers, *(nn.Linear(512, 512) for _ in range(8)), nn.Linear(512, CLASSES)
    )


def get_inputs():
    return torch.randn(256, 512)


def get_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def get_loss(output, inputs):
    labels = torch.arange(len(inputs), device=inputs.device) % CLASSES
    return torch.nn.functional.cross_entropy(output, labels)
