"""Does the check of a training step refuse settings that are right?

    python studies/gpu/refusals.py gpt2_step,resnet_step --seeds 20 --seconds 240 --to FILE

For each seed a network has other weights and inputs, and a step of each setting is verified as a
trial verifies it: three calls, and one more. Nothing is timed. A line of the file is one setting of
one seed: the outcome, what was said, how far eager's own rounding moves its gradients (the middle
one, the most, and all as one), and how far those of the setting are off at most, as a multiple of
that (three may be), and their lengths.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from pathlib import Path

import torch

from autocompile.settings.config import CompileConfig
from autocompile.trial.failures import Failed
from autocompile.trial.measure import telemetry
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.sides import Side, make_side
from autocompile.trial.model.state import perturb
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.values import flatten
from autocompile.trial.verify import side_checks as checks
from autocompile.trial.verify.compare import TRIES
from autocompile.trial.verify.outputs import copy_view
from autocompile.trial.verify.reference import Reference
from autocompile.trial.verify.slices import apart

HERE = Path(__file__).resolve().parent
PHASE = "train_step"
GRADIENTS = "['gradients']['"
SETTINGS = {
    "fused": CompileConfig("eager", optimizer="fused"),
    "foreach": CompileConfig("eager", optimizer="foreach"),
    "for_loop": CompileConfig("eager", optimizer="for_loop"),
    "plain": CompileConfig(),
    "reduce-overhead fused": CompileConfig(mode="reduce-overhead", optimizer="fused"),
    "whole step fused": CompileConfig(scope="step", optimizer="fused"),
}


def judged(target: Target, seed: int, config: CompileConfig) -> dict[str, object]:
    """What a trial of this setting would say, but for the clock."""
    draws = target.inputs(PHASE, None), target.inputs(PHASE, None)
    reference = Reference(target, PHASE, draws, seed, [])
    off: dict[str, float] = {"multiple": 0.0, "longer": 0.0, "all_longer": 0.0}
    telemetry.reset_dynamo(config.backend)
    side = make_side(target, PHASE, draws[0], config)
    said = "ok"
    try:
        with reference.comparable_random_numbers(side):
            subject = checks.Subject(side, reference.call(side, 0), [])
            checks.first_calls(reference, subject)
            if not subject.draws_otherwise:
                off = distances(reference, side)
            checks.last_call(reference, subject)
            checks.draws(reference, subject)
    except Failed as failed:
        said = f"{failed.outcome.value}: {failed}"
    movement = reference.moved(1, TRIES[-1])
    assert movement is not None
    by = {
        path: math.sqrt(float(each.together[0] / each.together[1]))
        for path, each in movement.leaves.items()
        if path.startswith(GRADIENTS) and each.together is not None
    }
    moved = sorted(by.values())
    most = [moved[int(q * (len(moved) - 1))] for q in (0.5, 1)]
    most.append(movement.of_gradients)
    return {"said": said, "moved": [round(x, 6) for x in most]} | off


def distances(reference: Reference, side: Side) -> dict[str, float]:
    """How far gradients are off, in what rounding moves, and how much longer they are."""
    movement = reference.moved(1, TRIES[-1])
    assert movement is not None
    want, got = copy_view(reference.view(1)), reference.from_kept(side, 1)
    now = {"multiple": 0.0, "longer": 0.0, "all_longer": 0.0}
    whole = torch.zeros(3, dtype=torch.float64)
    leaves = zip(flatten(want).leaves, flatten(got).leaves, strict=True)
    for (path, a), (_, b) in leaves:
        if path.startswith(GRADIENTS):
            far = apart(a, b)
            whole += far.squares.cpu()
            by = float(movement.slices(path).scale(a)[0])
            if 0 < by <= float(far.size[0]) / 2:  # else it is rounding alone
                now["multiple"] = max(now["multiple"], float(far.error[0]) / by)
                now["longer"] = max(now["longer"], change(far.squares))
    now["all_longer"] = change(whole)
    return {name: round(x, 5) for name, x in now.items()}


def change(squares: torch.Tensor) -> float:
    """The relative change of a length, from the squares of the difference and of both."""
    _, first, second = squares.tolist()
    return abs(math.sqrt(second / first) - 1) if first else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", help="names, with commas")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--only", default=",".join(SETTINGS))
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="nothing begins later"
    )
    parser.add_argument("--to", type=Path, default=Path("refusals.jsonl"))
    options = parser.parse_args()
    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name in options.models.split(","):
        folder = (
            "targets" if (HERE / "targets" / f"{name}.py").exists() else "targets_cpu"
        )
        spec = str(HERE / folder / f"{name}.py")
        seed_everything(0)
        target = build(spec, import_target(spec))
        target.to(device)
        tensors = [*target.model.parameters(), *target.model.buffers()]
        initial = [x.detach().clone() for x in tensors]
        for seed in range(options.first, options.first + options.seeds):
            for setting in options.only.split(","):
                if time.monotonic() - began > options.seconds:
                    sys.exit()
                seed_everything(seed)
                for tensor, value in zip(tensors, initial, strict=True):
                    tensor.detach().copy_(value)
                perturb(target.model, seed)
                row = {"model": name, "seed": seed, "setting": setting}
                row |= judged(target, seed, SETTINGS[setting])
                gc.collect()
                torch.cuda.empty_cache()
                print(json.dumps(row), flush=True)
                with options.to.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
