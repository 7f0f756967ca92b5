"""Does the check of a training step refuse settings that are right?

    python studies/gpu/refusals.py gpt2_step,resnet_step --seeds 20 --seconds 240 --to FILE

For each seed a network has other weights and inputs, and a step of each setting is verified as a
trial verifies it: three calls, and one more. Nothing is timed. A line of the file is one setting of
one seed: the outcome, what was said, and how far eager's own rounding moves its gradients.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from autocompile.settings.config import CompileConfig
from autocompile.trial.inspect import telemetry
from autocompile.trial.phases.phases import make_side
from autocompile.trial.phases.side import perturb
from autocompile.trial.process.failures import Failed
from autocompile.trial.target.load import build, import_target
from autocompile.trial.target.target import Target, seed_everything
from autocompile.trial.verify.random_draws import compare_with_eagers_draws
from autocompile.trial.verify.verifier import Verifier

HERE = Path(__file__).resolve().parent
PHASE = "train_step"
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
    verifier = Verifier(target, PHASE, draws, seed, [])
    telemetry.reset_dynamo(config.backend)
    side = make_side(target, PHASE, draws[0], config)
    said = "ok"
    try:
        with verifier.comparable_random_numbers(side):
            verifier.first_calls(side, verifier.seeded_call(side, 0))
            verifier.share_kept(side)
            verifier.last_call(side)
        compare_with_eagers_draws(verifier, side, config)
    except Failed as failed:
        said = f"{failed.outcome.value}: {failed}"
    moved = sorted(
        e for path, e in verifier._moved().by.items() if path.startswith("['gradients'][")
    )
    return {"said": said, "moved": [round(moved[int(q * (len(moved) - 1))], 6) for q in (0.5, 1)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", help="names, with commas")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--only", default=",".join(SETTINGS))
    parser.add_argument("--seconds", type=float, default=1e9, help="nothing begins later")
    parser.add_argument("--to", type=Path, default=Path("refusals.jsonl"))
    options = parser.parse_args()
    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name in options.models.split(","):
        folder = "targets" if (HERE / "targets" / f"{name}.py").exists() else "targets_cpu"
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
                print(json.dumps(row), flush=True)
                with options.to.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
