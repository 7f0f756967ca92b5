"""How far is eager mode from itself while other processes use the GPU?

    python studies/verification/by_itself.py gpt2 --to studies/verification/h200.json

A process makes the same gradients again and again, with the same weights, inputs and random
numbers, and compares them with those of the first: alone, then beside two others. The largest
difference of each call, relative to a gradient, is written to ``by_itself`` of the JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

from verification import HERE, write


def differences(target: str, device: str, calls: int) -> list[float]:
    """The largest difference of a gradient from the first call's, relative to itself, by call."""
    import torch

    sys.path.insert(0, str(HERE / "targets"))
    module = importlib.import_module(target)
    torch.manual_seed(0)
    model = module.get_model().to(device)
    inputs = tuple(x.to(device) for x in module.get_inputs())

    def gradients() -> list[Any]:
        torch.manual_seed(0)
        model.zero_grad()
        module.get_loss(model(*inputs), inputs).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    first, found = gradients(), []
    for _ in range(calls):
        pairs = zip(first, gradients(), strict=True)
        apart = [float((a - b).norm() / a.norm()) for a, b in pairs if a.any()]
        found.append(float(f"{max(apart):.2g}"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", help="gpt2, resnet, value or vit of targets/")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--calls", type=int, default=12)
    parser.add_argument("--to", type=Path, help="the JSON")
    options = parser.parse_args()
    found: dict[str, Any] = {"target": options.target}
    context = multiprocessing.get_context("spawn")
    for processes in (1, 3):
        asked = [(options.target, options.device, options.calls)] * processes
        with context.Pool(processes) as pool:
            found[f"{processes} at once"] = pool.starmap(
                differences, asked, chunksize=1
            )
    print(json.dumps(found))
    if options.to:
        data = json.loads(options.to.read_text()) if options.to.exists() else {}
        write(options.to, {**data, "by_itself": found})


if __name__ == "__main__":
    main()
