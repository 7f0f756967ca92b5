"""How far is eager mode from itself while other processes use the GPU?

A process makes the same training step again and again, with the same weights, inputs and random
numbers, and compares its gradients with those of the first: alone, then beside two others. One JSON
file with the largest difference of each call, relative to the gradient.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from pathlib import Path
from typing import Any


def differences(target: str, phase: str, device: str, calls: int) -> list[float]:
    """The largest difference of a gradient from the first call's, relative to itself, by call."""
    import torch

    from autocompile.trial.model.load import build, import_target
    from autocompile.trial.model.target import seed_everything
    from autocompile.trial.tasks.session import inputs_of
    from autocompile.trial.verify.compare import relative_differences
    from autocompile.trial.verify.reference import Reference

    seed_everything(0)
    made = build(target, import_target(target), None)
    made.to(torch.device(device))
    batches = [inputs_of(made, phase, None, 0, draw) for draw in (0, 1)]
    reference = Reference(made, phase, (batches[0], batches[1]), 0, [])
    found = []
    for _ in range(calls):
        side = reference.another_eager()
        view = side.view(reference.call(side, 0))
        apart = relative_differences(reference.expected[0], view)
        found.append(float(f"{max(apart.values()):.2g}"))
        del side, view  # as large as the model
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--phase", default="train_step")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--calls", type=int, default=12)
    parser.add_argument("--to", type=Path, required=True, help="the JSON")
    options = parser.parse_args()
    about: dict[str, Any] = {"target": Path(options.target).name}
    context = multiprocessing.get_context("spawn")
    for processes in (1, 3):
        asked = [(options.target, options.phase, options.device, options.calls)]
        with context.Pool(processes) as pool:
            found = pool.starmap(differences, asked * processes, chunksize=1)
        about[f"{processes} at once"] = found
        print(processes, found, flush=True)
    import torch

    on_gpu = options.device.startswith("cuda")
    about["machine"] = torch.cuda.get_device_name() if on_gpu else "CPU"
    about["torch"] = torch.__version__
    options.to.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
