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
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from autocompile.settings.config import CompileConfig
from autocompile.trial.failures import Failed
from autocompile.trial.measure import telemetry
from autocompile.trial.model.load import build, import_target
from autocompile.trial.model.sides import make_side, perturb
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.verify.compare import ALL, MOST_ROUNDING, differences, lengths
from autocompile.trial.verify.outputs import View
from autocompile.trial.verify.verifier import Verifier, compare_with_eagers_draws

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
    verifier = Noting(target, PHASE, draws, seed, [])
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
    by = verifier._moved().by
    moved = sorted(e for path, e in by.items() if path.startswith(GRADIENTS))
    most = [*(moved[int(q * (len(moved) - 1))] for q in (0.5, 1)), by[ALL]]
    return {"said": said, "moved": [round(x, 6) for x in most]} | verifier.off


class Noting(Verifier):
    """Notes how far gradients are off."""

    off: Mapping[str, float] = {"multiple": 0.0, "longer": 0.0, "all_longer": 0.0}

    def demand(self, got: View, want: View, *args: Any, **more: Any) -> None:
        by, longer = self._moved().by, lengths(want, got)
        sure = [
            p
            for p, m in by.items()
            if p.startswith(GRADIENTS) and 0 < m <= MOST_ROUNDING
        ]
        off = differences(want, got)
        now = {
            "multiple": max((off.get(p, 0.0) / by[p] for p in sure), default=0.0),
            "longer": max((longer.get(p, 0.0) for p in sure), default=0.0),
            "all_longer": longer.get(ALL, 0.0),
        }
        self.off = {key: max(round(x, 5), self.off[key]) for key, x in now.items()}
        super().demand(got, want, *args, **more)


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
