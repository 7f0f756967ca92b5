"""Small models, and one Dynamo backend for each way of computing something else."""

import itertools

import torch
import torch._dynamo
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd

torch.set_num_threads(1)  # or one busy neighbour slows a block of calls a hundredfold

_LATE = 10  # calls: more than the 5 before the timing, fewer than it makes at the least


def get_model():
    return torch.nn.Sequential(
        torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
    )


def get_inputs(batch_size):
    return (torch.randn(batch_size, 16),)


def get_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-2)


class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(16, 4), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.left(x), self.right(x)


def two_heads():
    return TwoHeads()


class Normalizing(torch.nn.Module):
    """It has a parameter and a buffer, as a policy that normalizes what it observes."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)
        self.register_buffer("scale", torch.full((16,), 2.0))

    def forward(self, x):
        return self.linear(x / self.scale)


def normalizing():
    return Normalizing()


class Writing(TwoHeads):
    """It gives one head and leaves the other in its input, as a cache of keys is filled."""

    def forward(self, x):
        left, right = super().forward(x)
        x[:, :4] = right
        return left


def writing():
    return Writing()


class NeverCaptured(TwoHeads):
    @torch.compiler.disable
    def forward(self, x):
        return self.left(x)


def never_captured():
    return NeverCaptured()


def errors_suppressed():
    """The model of a file that tells Dynamo to go on in eager when a backend fails."""
    torch._dynamo.config.suppress_errors = True
    return get_model()


def _changing(name, change):
    """A backend whose outputs are ``change(outputs, number of the call)``."""

    def backend(graph, inputs):
        calls = []

        def run(*args):
            calls.append(None)
            return tuple(change(graph(*args), len(calls)))

        return run

    register_backend(backend, name=name)


def _one_nan(outputs, call):
    outputs = [out.clone() for out in outputs]
    outputs[0].view(-1)[5] = float("nan")
    return outputs


_changing("zeros", lambda outputs, _: (torch.zeros_like(out) for out in outputs))
_changing("off_by_a_hundredth", lambda outputs, _: (out * 1.01 for out in outputs))
_changing("off_by_a_twentieth", lambda outputs, _: (out * 1.05 for out in outputs))
_changing("right_twice", lambda outputs, call: (out + (call > 2) for out in outputs))
_changing("wears_out", lambda outputs, call: (out + (call > _LATE) for out in outputs))
_changing("one_nan", _one_nan)
_changing("swaps", lambda outputs, _: reversed(outputs))
_changing("widens", lambda outputs, _: (out.double() for out in outputs))
_changing("negates", lambda outputs, _: (-out for out in outputs))


def _same_memory(after):
    """A backend that gives every answer in the same memory from some call on."""
    buffers = {}

    def change(outputs, call):
        if call <= after:
            return outputs
        return [
            buffers.setdefault(index, torch.empty_like(out)).copy_(out)
            for index, out in enumerate(outputs)
        ]

    return change


_changing("same_memory", _same_memory(0))
_changing("same_memory_late", _same_memory(_LATE))


@register_backend
def bakes_weights(graph, inputs):
    kept = [
        x.detach().clone() if isinstance(x, torch.nn.Parameter) else None
        for x in inputs
    ]
    return lambda *args: graph(
        *(a if k is None else k for a, k in zip(args, kept, strict=True))
    )


@register_backend
def bakes_buffers(graph, inputs):
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    kept = [
        x.detach().clone() if "buffer" in name else None
        for name, x in zip(names, inputs, strict=True)
    ]
    assert any(k is not None for k in kept), names
    return lambda *args: graph(
        *(a if k is None else k for a, k in zip(args, kept, strict=True))
    )


@register_backend
def keeps_by_address(graph, inputs):
    """It takes inputs at an address for those that were there before."""
    kept = {}

    def run(*args):
        # As new tensors do not, in the loop of a program: the version counts no changes of data.
        where = tuple((x.data_ptr(), x._version) for x in args)
        if where not in kept:
            kept[where] = graph(*args)
        return tuple(out.clone() for out in kept[where])

    return run


@register_backend
def stays_with_the_second(graph, inputs):
    """It gives what belongs to the second of all inputs, once it is called often."""
    seen = {}
    calls = itertools.count()

    def run(*args):
        out = graph(*args)
        which = sum(x.sum().item() for x in args)
        seen.setdefault(which, tuple(x.clone() for x in out))
        if next(calls) < _LATE:
            return out
        return tuple(x.clone() for x in list(seen.values())[1])

    return run


@register_backend
def ignores_writes(graph, inputs):
    return lambda *args: graph(*(a.clone() for a in args))


def _wrong_backward(graph, inputs):
    return lambda *args: [None if g is None else g * 1.05 for g in graph(*args)]


register_backend(
    aot_autograd(
        fw_compiler=lambda graph, _: graph.forward, bw_compiler=_wrong_backward
    ),
    name="wrong_gradient",
)


@register_backend
def steps_twice(graph, inputs):
    """Right at the first call; from the second on all that it changes is changed twice."""
    calls = []

    def run(*args):
        calls.append(None)
        if len(calls) > 1:
            graph(*args)
        return graph(*args)

    return run


@register_backend
def fails(graph, inputs):
    raise RuntimeError("this backend cannot do it")
