"""Are right gradients refused where products are added up in another order?

A network of four layers, 8,192 rows, float32, on a CPU. The other side adds up products of matrices
in parts of four terms. ``--before`` leaves out what rounding does inside a sum, as up to d1db125.

    python studies/verification/order_of_sums.py [--before] [--count 60]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autocompile.trial.verify import rounding
from autocompile.trial.verify.compare import Movement, compare
from autocompile.trial.verify.outputs import View

PART, ROWS, INPUTS, WIDTHS = 4, 8192, 13, (512, 512, 64)


class InParts(TorchDispatchMode):
    """Adds up products of matrices in parts."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name not in ("mm", "addmm"):
            return function(*args, **(kwargs or {}))
        first, second = args[-2:]
        found = args[0] if name == "addmm" else 0
        parts = [
            first[:, begin : begin + PART] @ second[begin : begin + PART]
            for begin in range(0, first.shape[1], PART)
        ]
        return sum(parts[1:], parts[0]) + found


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = []
    before = INPUTS
    for width in WIDTHS:
        layers += [torch.nn.Linear(before, width), torch.nn.ReLU()]
        before = width
    return torch.nn.Sequential(*layers, torch.nn.Linear(before, 1))


def view(model: torch.nn.Module, x: torch.Tensor) -> View:
    """The loss and the gradients of a step."""
    model.zero_grad()
    wanted = (x[:, :1] > 0).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x), wanted)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    return {"outputs": loss.detach().clone(), "gradients": gradients}


def judged(seed: int) -> tuple[str | None, int]:
    """What is said of the right gradients of one network, and in how many tries."""
    model, x = network(seed), torch.randn(ROWS, INPUTS)
    want = view(model, x)
    with InParts():
        got = view(model, x)
    movement = Movement()

    def moved(tries: int) -> Movement:
        while movement.tries < tries:
            with rounding.RoundOtherwise(movement.tries):
                movement.add(want, view(model, x))
        return movement

    return compare(want, got, moved=moved), movement.tries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", action="store_true")
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    if options.before:
        rounding._lengths = lambda name, args: None
    refused = missed = 0
    for seed in range(options.count):
        problem, tries = judged(seed)
        refused += problem is not None
        missed += tries > 0
        if problem:
            print(seed, problem, flush=True)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads: of {options.count} right "
        f"steps {missed} missed the plain tolerance, {refused} were refused"
    )


if __name__ == "__main__":
    main()
