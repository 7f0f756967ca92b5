"""The Python API: tune a model of this file, then compile it with what was found.

python examples/api.py
"""

import torch
from torch import nn

import autocompile


def get_model():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())


def get_inputs(batch_size):
    return (torch.randn(batch_size, 64),)


# Trials load this file again in processes of their own: only the guard keeps them from tuning.
if __name__ == "__main__":
    result = autocompile.tune(
        get_model,
        phases=("forward",),
        space=autocompile.SearchSpace(
            backends=("inductor",),
            modes=("default", "max-autotune-no-cudagraphs"),
            batch_sizes=(16,),
        ),
        effort="quick",
    )
    speedup = result.speedup["forward"]
    print(f"{result.verdict['forward']}: {result.config['forward'].label()}")
    print(f"{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}] against eager")

    model = result.compile(get_model().eval())
    with torch.no_grad():
        print(tuple(model(*get_inputs(16)).shape))
