"""How fast the products and sums of a forward pass could be at all, in float32 on this CPU.

    python studies/dimensions/roofline.py

The number of floating-point operations of RLlib's PPO on Atari frames, by torch's own counter, over
the most that this machine was seen to do: the best rate of products of square matrices of several
sizes, and of the layers themselves. Beside it the sum of the layers, each alone, in the best of the
layouts and with weights packed or not. Written to ``cpu/roofline.json``.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIZES = (1, 4, 16)
SECONDS = 2.0


def best_s(call: Callable[[], object], seconds: float = SECONDS) -> float:
    """The shortest time of a call: what the machine can do when nothing is in the way."""
    for _ in range(3):
        call()
    shortest, until = float("inf"), time.monotonic() + seconds
    while time.monotonic() < until:
        begin = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest


def peak_flops() -> dict[int, float]:
    """Floating-point operations a second of square products, by size."""
    found = {}
    for size in (256, 512, 1024, 2048):
        left, right, out = (torch.rand(size, size) for _ in range(3))
        found[size] = 2 * size**3 / best_s(partial(torch.mm, left, right, out=out))
    return found


def module() -> torch.nn.Module:
    path = ROOT / "studies" / "tuning_cost" / "ppo_cnn.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded.get_model().eval()


def layers_s(model: torch.nn.Module, frames: torch.Tensor) -> float:
    """The sum over layers of the best time of each by itself."""
    total, x = 0.0, frames.permute(0, 3, 1, 2)
    for layer in [*model.body, model.head]:
        if isinstance(layer, (torch.nn.Conv2d, torch.nn.Linear)):
            total += min(best_s(call, 0.5) for call in ways(layer, x))
        x = layer(x)
    return total


def ways(layer: torch.nn.Module, x: torch.Tensor) -> list[Callable[[], object]]:
    """One layer in each layout, and with weights that oneDNN has packed."""
    plain = x.contiguous()
    found: list[Callable[[], object]] = [lambda: layer(plain)]
    if isinstance(layer, torch.nn.Conv2d):
        last = x.contiguous(memory_format=torch.channels_last)
        turned = copy.deepcopy(layer).to(memory_format=torch.channels_last)
        found.append(lambda: turned(last))
        packed = torch.ops.mkldnn._reorder_convolution_weight(
            layer.weight,
            layer.padding,
            layer.stride,
            layer.dilation,
            layer.groups,
            list(x.shape),
        )

        def pointwise() -> object:
            return torch.ops.mkldnn._convolution_pointwise(
                last, packed, layer.bias, layer.padding, layer.stride, layer.dilation,
                layer.groups, "relu", [], "",
            )  # fmt: skip

        found.append(pointwise)
    return found


def main() -> None:
    model, found = module(), {}
    peaks = peak_flops()
    peak = max(peaks.values())
    with torch.no_grad():
        for size in SIZES:
            frames = torch.rand(size, 84, 84, 4)
            counter = FlopCounterMode(display=False)
            with counter:
                model(frames)
            flops = counter.get_total_flops()
            found[size] = {
                "flops": flops,
                "layers_us": round(layers_s(model, frames) * 1e6, 1),
                "eager_us": round(best_s(partial(model, frames)) * 1e6, 1),
            }
    most = max(peak, *(row["flops"] / row["layers_us"] * 1e6 for row in found.values()))
    for row in found.values():
        row["roofline_us"] = round(row["flops"] / most * 1e6, 1)
    text = {
        "schema": 1,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "gflops_by_size": {
            size: round(value / 1e9, 1) for size, value in peaks.items()
        },
        "batch": found,
    }
    (HERE / "cpu").mkdir(exist_ok=True)
    (HERE / "cpu" / "roofline.json").write_text(json.dumps(text, indent=1) + "\n")
    print(json.dumps(text, indent=1))


if __name__ == "__main__":
    main()
