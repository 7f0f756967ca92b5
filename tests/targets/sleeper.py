"""Sleeps in the step that a file named `sleep` beside it names for as long as that is there."""

import os
import time
from pathlib import Path

import torch
from torch._dynamo import register_backend

torch.set_num_threads(1)
HERE = Path(__file__).parent
ASKED = HERE / "sleep"
CALLERS = HERE / "callers"  # of the model: one byte for each process
counted = {}


def number_of(step):
    """The how many process this is that calls the model, or would be, before it does."""
    if step in ("import", "build"):
        return 1 + (CALLERS.stat().st_size if CALLERS.exists() else 0)
    if os.getpid() not in counted:
        with open(CALLERS, "ab") as callers:
            callers.write(b"x")
            counted[os.getpid()] = callers.tell()
    return counted[os.getpid()]


def doze(step):
    """Sleep, if this is the step and enough processes have been spared."""
    number = number_of(step)
    asked, spared = ASKED.read_text().split() if ASKED.exists() else ("", "0")
    if step == asked and int(spared) < number:
        (HERE / "asleep").touch()
        while ASKED.exists():
            time.sleep(0.05)


doze("import")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        if not torch.compiler.is_compiling():
            doze("eager")
        return self.linear(x)


def get_model():
    doze("build")
    return Net()


def get_inputs(batch_size):
    return (torch.randn(batch_size, 8),)


def slow(graph, inputs):
    """Right, and too slow to be measured again as one of the best."""
    doze("compile")
    calls = []

    def run(*args):
        calls.append(None)
        if len(calls) == 2:
            doze("verify")
        if len(calls) == 10:  # 5 are before the timing
            doze("measure")
        time.sleep(0.0005)
        return graph(*args)

    return run


for name in ("one", "two"):
    register_backend(slow, name=name)


@register_backend
def honest(graph, inputs):
    return graph.forward


@register_backend
def wrong(graph, inputs):
    return lambda *args: tuple(out + 1 for out in graph(*args))


@register_backend
def raises(graph, inputs):
    raise ValueError("this backend cannot do it")


@register_backend
def leaves(graph, inputs):
    os._exit(3)
