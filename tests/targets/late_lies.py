"""Fast settings that are wrong in what only the later checks see."""

import torch
from torch._dynamo import register_backend

torch.set_num_threads(1)
_WIDTH = 256


class Chain(torch.nn.Module):
    """Products that are one product, for who takes the weights as constants."""

    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(8)]
        for layer in layers:
            torch.nn.init.orthogonal_(layer.weight)
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class Noisy(torch.nn.Module):
    """Much of what is fused into one kernel, by a factor that has dropout in it."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x):
        x = x * torch.nn.functional.dropout(self.scale, 0.1, training=True)
        for _ in range(16):
            x = (x * 1.01 + 0.01).abs()
        return x


def get_inputs(batch_size):
    return (torch.randn(batch_size, _WIDTH),)


def chain():
    return Chain()


def noisy():
    """A model that Inductor compiles to something that is off by 5 %."""
    import torch._inductor.config

    torch._inductor.config.post_grad_custom_post_pass = _off
    return Noisy()


@register_backend
def folds(graph, inputs):
    """Right for the weights that it was compiled with."""
    (at,) = [n for n, x in enumerate(inputs) if not isinstance(x, torch.nn.Parameter)]

    def of(x):
        return graph(*inputs[:at], x, *inputs[at + 1 :])[0]

    with torch.no_grad():
        bias = of(torch.zeros(1, _WIDTH))
        weight = of(torch.eye(_WIDTH)) - bias
    return lambda *args: (torch.addmm(bias, args[at], weight),)


def _off(graph):
    """Multiply what the graph gives, wherever draws are made by whom."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    first = output.args[0][0]
    with graph.inserting_before(output):
        wrong = graph.call_function(torch.ops.aten.mul.Tensor, (first, 1.05))
        wrong.meta = dict(first.meta)
    output.replace_input_with(first, wrong)
