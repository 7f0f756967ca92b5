"""Training is the same with tuned settings: PPO on CartPole, ten seeds with and without.

    python studies/rllib/training.py            (five minutes)
    python studies/rllib/training.py --show     (the table of training.json)

Everything is compiled that can be, whether it pays or not. Each training is a process of its own.
Kept is the mean return of episodes after each iteration.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PATH = Path(__file__).parent / "training.json"
SEEDS, ITERATIONS = 10, 40
LAST = (
    10  # the return of a training: the mean of its last ten with an episode that ended
)
SIDES = ("untouched", "tuned")
STUDENT = 2.262  # of 95 % and ten seeds


def train(seed: int, side: str) -> list[float | None]:
    """The curve of one training; None where no episode ended."""
    import torch
    from cartpole import get_model

    from autocompile.rllib import tuned
    from autocompile.runtime.machine import describe
    from autocompile.settings.config import CompileConfig
    from autocompile.settings.tuned import Choice, Tuned

    config = get_model().debugging(seed=seed)
    if side == "tuned":
        inductor, fused = CompileConfig(), CompileConfig("eager", optimizer="fused")
        choices = {
            "forward_exploration": (Choice(inductor, 16),),
            "forward_train": (Choice(inductor, 16),),
            "optimizer_step": (Choice(fused),),
        }
        config = tuned(config, Tuned(choices, describe(torch.device("cpu"))))
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more are no help to so small a network
    algorithm = config.build_algo()
    results = [algorithm.train() for _ in range(ITERATIONS)]
    means = [result["env_runners"]["episode_return_mean"] for result in results]
    return [None if math.isnan(value) else round(value, 2) for value in means]


def show(rows: list[dict[str, Any]]) -> None:
    """Returns of both sides, and of each seed the difference."""
    final: dict[str, list[float]] = {side: [] for side in SIDES}
    for row in sorted(rows, key=lambda row: row["seed"]):
        ended = [value for value in row["returns"] if value is not None]
        final[row["side"]].append(mean(ended[-LAST:]))
    for side, values in final.items():
        spread = f"{mean(values):.1f} ± {stdev(values):.1f}"
        print(f"{side:10} {len(values)} seeds: {spread}, {sorted(map(round, values))}")
    pairs = zip(final["tuned"], final["untouched"], strict=True)
    apart = [tuned - untouched for tuned, untouched in pairs]
    half = STUDENT * stdev(apart) / len(apart) ** 0.5
    low, high = mean(apart) - half, mean(apart) + half
    print(f"tuned - untouched: {mean(apart):.1f} [{low:.1f}, {high:.1f}]")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print("\n" + json.dumps(train(int(asked.one[0]), asked.one[1])))
        return
    known = json.loads(PATH.read_text())
    if not asked.show:
        known["rows"] = []
        for seed in range(SEEDS):
            for side in SIDES:
                command = [sys.executable, __file__, "--one", str(seed), side]
                done = subprocess.run(
                    command, stdout=subprocess.PIPE, text=True, check=True
                )
                returns = json.loads(done.stdout.splitlines()[-1])
                known["rows"].append({"seed": seed, "side": side, "returns": returns})
        PATH.write_text(json.dumps(known) + "\n")
    show(known["rows"])


if __name__ == "__main__":
    main()
