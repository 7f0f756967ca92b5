"""A small model, and one Dynamo backend for each way in which compiling can go wrong."""

import ctypes
import os
import subprocess
import sys
import time

import torch
from torch._dynamo import register_backend

torch.set_num_threads(1)  # or one busy neighbour slows a block of calls a hundredfold

_LATE = 10  # calls: more than the 5 before the timing, fewer than it makes at the least


def get_model():
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    )


def get_inputs(batch_size):
    return (torch.randn(batch_size, 16),)


@register_backend
def honest(graph, inputs):
    return graph.forward


@register_backend
def zeros(graph, inputs):
    return lambda *args: tuple(torch.zeros_like(out) for out in graph(*args))


@register_backend
def nan(graph, inputs):
    def run(*args):
        outputs = [out.clone() for out in graph(*args)]
        outputs[0].view(-1)[0] = float("nan")
        return tuple(outputs)

    return run


@register_backend
def slightly_off(graph, inputs):
    return lambda *args: tuple(out * 1.01 for out in graph(*args))


@register_backend
def remembers(graph, inputs):
    """Right at first, and the same answer ever after."""
    memory = []

    def run(*args):
        if not memory:
            memory.append(tuple(out.clone() for out in graph(*args)))
        return memory[0]

    return run


@register_backend
def wears_out(graph, inputs):
    """Right for as long as anybody looks, and wrong when it has been timed."""
    calls = []

    def run(*args):
        calls.append(None)
        return tuple(out + (len(calls) > _LATE) for out in graph(*args))

    return run


@register_backend
def does_nothing(graph, inputs):
    """A hundred times faster than eager."""
    outputs = tuple(torch.empty_like(out) for out in graph(*inputs))
    return lambda *args: outputs


@register_backend
def stale(graph, inputs):
    """Bakes the weights in: right until they change."""
    baked = {}

    def run(*args):
        is_weight = [isinstance(a, torch.nn.Parameter) for a in args]
        for index, weight in enumerate(is_weight):
            if weight:
                baked.setdefault(index, args[index].detach().clone())
        return graph(*(baked.get(index, arg) for index, arg in enumerate(args)))

    return run


@register_backend
def raises(graph, inputs):
    raise ValueError("this backend cannot do it")


@register_backend
def needs_a_package(graph, inputs):
    import a_package_that_is_not_there  # noqa: F401


@register_backend
def segfaults(graph, inputs):
    ctypes.string_at(0)


@register_backend
def leaves(graph, inputs):
    os._exit(0)


@register_backend
def exits(graph, inputs):
    sys.exit("gone")


@register_backend
def hangs(graph, inputs):
    """Hangs, with children that ignore signals and left the session."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    while True:
        time.sleep(1)


@register_backend
def eats_memory(graph, inputs):
    hoard = []
    while True:
        hoard.append(bytearray(64 * 2**20))


@register_backend
def shouts(graph, inputs):
    line = b"\xff\xfe not UTF-8 " + b"x" * 4000 + b"\n"
    for _ in range(25_000):
        os.write(1, line)
    forged = b'{"nonce": "", "event": "result", "outcome": "ok", "step": "exit"}\n'
    os.write(1, forged)
    return graph.forward


@register_backend
def forges(graph, inputs):
    """Writes a result of its own to every pipe that it finds open."""
    forged = b'{"nonce": "guess", "event": "result", "outcome": "ok", "step": "exit"}\n'
    for descriptor in range(3, 30):
        try:
            os.write(descriptor, forged)
        except OSError:
            continue
    return graph.forward


@register_backend
def closes_descriptors(graph, inputs):
    os.closerange(3, 64)
    return graph.forward
