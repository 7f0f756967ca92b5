"""What tells rounding from errors: eager rounded otherwise, or eager in float64?

    python studies/verification/yardsticks.py --to studies/verification/cpu/yardsticks.json

Small networks are compiled by Inductor, and calls with many weights and inputs compared by the
package's own rule, with one of two scales: what 16 tries move in which eager's operations are
rounded otherwise at random, and how far eager is from a run in float64. Counted are right settings
that are refused, and errors planted into what the setting gives that are found.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import platform
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autocompile.settings.config import CompileConfig
from autocompile.trial.model.sides import make_side
from autocompile.trial.model.state import perturb
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.values import flatten, rebuilt
from autocompile.trial.verify.compare import Movement, Moving, compare
from autocompile.trial.verify.outputs import View, copy_view
from autocompile.trial.verify.reference import Reference

PHASES = ("forward", "train_step")
Lie = Callable[[View], bool]


class Block(nn.Module):
    """A block of a decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def decoder() -> nn.Module:
    layers = [Block(64) for _ in range(3)]
    head = nn.Linear(64, 1000, bias=False)
    return nn.Sequential(nn.Embedding(1000, 64), *layers, nn.LayerNorm(64), head)


class ConvNet(nn.Module):
    """Normalized convolutions with biases, whose gradients are 0 but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 16, 16, 32, 32)
        layers: list[nn.Module] = []
        for n, (inner, outer) in enumerate(itertools.pairwise(sizes)):
            layers += [nn.Conv2d(inner, outer, 3, 2 - n % 2, 1), nn.BatchNorm2d(outer)]
            layers += [nn.ReLU()] if n < 3 else []
        layers += [nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.BatchNorm2d(32), nn.ReLU()]
        self.net, self.head = nn.Sequential(*layers), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(x).mean((2, 3)))


def value() -> nn.Module:
    layers = [nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(64, 1))


class Cast(nn.Module):
    """A model under autocast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(x)


def next_token(logits: torch.Tensor, inputs: Any) -> torch.Tensor:
    flat = logits[:, :-1].float().flatten(0, 1)
    return nn.functional.cross_entropy(flat, inputs[0][:, 1:].flatten())


def of_classes(logits: torch.Tensor, inputs: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.float(), torch.arange(len(logits)))


MODELS: dict[str, tuple[Any, Any, Any]] = {
    "decoder": (decoder, lambda: torch.randint(0, 900, (4, 32)), next_token),
    "convolutions": (ConvNet, lambda: torch.randn(8, 3, 24, 24), of_classes),
    "value head": (
        value,
        lambda: torch.randn(8, 16),
        lambda y, x: y.float().square().mean(),
    ),
}
PRECISIONS = ("float32", "autocast", "bfloat16")


def target_of(name: str, precision: str) -> Target:
    seed_everything(0)
    make, inputs, loss = MODELS[name]
    model = Cast(make()) if precision == "autocast" else make()
    is_short = precision == "bfloat16"

    def made(_: Any) -> tuple[torch.Tensor]:
        x = inputs()
        return (x.bfloat16() if is_short and x.is_floating_point() else x,)

    return Target(
        "functions",
        model.bfloat16() if is_short else model,
        made,
        make_optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=3e-4),
        loss=loss,
    )


class WideCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Casts to any floating type give float64, so that autocast rounds nothing."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        dtype = kwargs.get("dtype")
        is_cast = function is torch.ops.aten._to_copy.default
        if is_cast and dtype and dtype.is_floating_point:
            kwargs["dtype"] = torch.float64
        return function(*args, **kwargs)


def in_float64(reference: Reference, target: Target, index: int) -> View:
    """Eager's view of a call, from the same weights, in float64."""
    model = copy.deepcopy(reference.eager.model).double()
    side = make_side(target, reference.name, None, model=model)
    side.adopt(reference.eager)
    batch = reference.batches[index % len(reference.batches)]
    side.inputs = rebuilt(
        batch, lambda x: x.double() if x.is_floating_point() else x.clone()
    )
    seed_everything(reference.seed + index)
    with WideCasts():  # type: ignore[no-untyped-call]
        return copy_view(side.view(side.run()))


def scales(reference: Reference, target: Target, index: int) -> dict[str, Moving]:
    """What moves a call by each of the two measures."""
    exact = Movement()
    exact.add(copy_view(reference.view(index)), in_float64(reference, target, index))
    tried = reference.moved(index, 16)
    assert tried is not None
    return {"rounded otherwise": lambda n: tried, "float64": lambda n: exact}


# Lies: each changes a copy of the view of a right setting, and says whether it could.


def large(view: View) -> list[torch.Tensor]:
    gradients = flatten({"gradients": view.get("gradients", {})}).leaves
    return [x for _, x in gradients if x.numel() > 500]


def scaled(factor: float) -> Lie:
    def lie(view: View) -> bool:
        for _, x in flatten({"gradients": view.get("gradients", {})}).leaves:
            x.mul_(factor)
        return "gradients" in view

    return lie


def one(change: Callable[[torch.Tensor], Any]) -> Lie:
    """One of the larger gradients."""

    def lie(view: View) -> bool:
        if found := large(view):
            change(found[len(found) // 2])
        return bool(found)

    return lie


def row(view: View) -> bool:
    output = view.get("outputs")
    if output is not None:
        output.flatten(0, -2)[-1].zero_()
    return output is not None


def last_class(view: View) -> bool:
    output = view.get("outputs")
    if output is None or output.shape[-1] < 2:
        return False
    output[..., -1].zero_()
    return True


def row_of_table(view: View) -> bool:
    tables = [x for x in large(view) if x.dim() == 2 and x.shape[0] == 1000]
    for x in tables[:1]:
        x[int(x.abs().sum(1).nonzero()[3])].zero_()
    return bool(tables)


LIES: dict[str, Lie] = {
    "all gradients x 1.01": scaled(1.01),
    "all gradients x 1.02": scaled(1.02),
    "all gradients x 1.05": scaled(1.05),
    "one gradient x 1.02": one(lambda x: x.mul_(1.02)),
    "one gradient x 1.05": one(lambda x: x.mul_(1.05)),
    "one gradient zero": one(lambda x: x.zero_()),
    "row of an embedding's gradient": row_of_table,
    "row of an output": row,
    "class of an output": last_class,
}


def calls(
    name: str, precision: str, phase: str, seeds: int
) -> Iterator[tuple[View, View, dict[str, Moving]]]:
    """Eager's view, that of the compiled setting, and the scales, of calls of many weights."""
    target = target_of(name, precision)
    side, initial = None, copy.deepcopy(target.model.state_dict())
    for seed in range(seeds):
        seed_everything(seed)
        target.model.load_state_dict(initial)
        perturb(target.model, seed)
        draws = target.inputs(phase, None), target.inputs(phase, None)
        reference = Reference(target, phase, draws, seed, [])
        if side is None:
            side = make_side(target, phase, draws[0], CompileConfig())
            side.run()
        side.model.load_state_dict(reference.eager.model.state_dict())
        for index in (0, 1):
            want = copy_view(reference.view(index))
            got = reference.from_kept(side, index)
            yield want, got, scales(reference, target, index)


def judged(name: str, precision: str, phase: str, seeds: int) -> list[dict[str, Any]]:
    """A row for each of the two scales."""
    counts: dict[str, Counter[str]] = {}
    tried: Counter[str] = Counter()
    number = 0
    for want, got, by in calls(name, precision, phase, seeds):
        number += 1
        wrong = {}
        for lie, change in LIES.items():
            view = copy_view(got)
            if change(view):
                wrong[lie] = view
                tried[lie] += 1
        for scale, moved in by.items():
            found = counts.setdefault(scale, Counter())
            found["refused"] += compare(want, got, moved=moved) is not None
            for lie, view in wrong.items():
                found[lie] += compare(want, view, moved=moved) is not None
    return [
        {
            "model": name,
            "precision": precision,
            "phase": phase,
            "scale": scale,
            "calls": number,
            "refused": found.pop("refused"),
            "found": {lie: [found[lie], tried[lie]] for lie in tried},
        }
        for scale, found in counts.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in MODELS:
        for precision in PRECISIONS:
            for phase in PHASES:
                rows += judged(name, precision, phase, options.seeds)
                print(json.dumps(rows[-2:]), flush=True)
                torch._dynamo.reset()
    about = {"machine": platform.machine(), "torch": torch.__version__}
    options.to.parent.mkdir(parents=True, exist_ok=True)
    options.to.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
