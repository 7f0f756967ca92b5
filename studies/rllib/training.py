"""Training is the same with tuned settings: PPO on CartPole, ten seeds with and without.

    python studies/rllib/training.py            (adds what is missing; repeat it; then the table)

Everything is compiled that can be, whether it pays or not. Each training is a process of its own.
Written to ``cpu/training.json``: the mean return of episodes after each iteration.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "truth")]
from store import append, commit, last_line, load  # noqa: E402

PATH = HERE / "cpu" / "training.json"
SEEDS, ITERATIONS, LAST = (
    10,
    40,
    10,
)  # the return of a training: the mean of the last ten
SIDES = ("untouched", "tuned")


def train(seed: int, side: str) -> dict[str, Any]:
    """The curve of one training."""
    import torch
    from cartpole import get_model

    from autocompile.rllib import tuned
    from autocompile.runtime.machine import describe
    from autocompile.settings.config import CompileConfig
    from autocompile.settings.tuned import Choice, Tuned

    config = get_model().debugging(seed=seed)
    if side == "tuned":
        inductor, fused = CompileConfig(), CompileConfig("eager", optimizer="fused")
        phases = {"forward_exploration": inductor, "forward_train": inductor}
        choices = {name: (Choice(c, 16),) for name, c in phases.items()}
        choices["optimizer_step"] = (Choice(fused),)
        config = tuned(config, Tuned(choices, describe(torch.device("cpu"))))
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more are no help to so small a network
    began = time.monotonic()
    algorithm = config.build_algo()
    results = [algorithm.train() for _ in range(ITERATIONS)]
    means = [r["env_runners"]["episode_return_mean"] for r in results]
    # No episode ends in some iterations.
    returns = [None if math.isnan(mean) else round(mean, 2) for mean in means]
    active = results[-1].get("autocompile")
    return {
        "returns": returns,
        "took_s": round(time.monotonic() - began, 1),
        "active": active,
    }


def show() -> None:
    """Returns of both sides, and of each seed the difference."""
    from autocompile.estimate.intervals import median_interval

    final = {side: {} for side in SIDES}
    for row in load(PATH):
        last = [mean for mean in row["returns"] if mean is not None][-LAST:]
        final[row["side"]][row["seed"]] = statistics.mean(last)
    if not all(final.values()):
        return
    for side, returns in final.items():
        values = list(returns.values())
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(
            f"{side:10} {len(values)} seeds: mean {statistics.mean(values):.1f} ± {spread:.1f}"
        )
        print(f"{'':10} {' '.join(f'{value:.0f}' for value in sorted(values))}")
    both = sorted(final["tuned"].keys() & final["untouched"].keys())
    found = median_interval([final["tuned"][s] - final["untouched"][s] for s in both])
    print(f"tuned - untouched: {found.value:.1f} [{found.low:.1f}, {found.high:.1f}]")


def main() -> None:
    """Train what is missing, for as long as there is time, and show it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="begin none after that"
    )
    parser.add_argument(
        "--one", nargs=2, metavar=("SEED", "SIDE"), help=argparse.SUPPRESS
    )
    asked = parser.parse_args()
    if asked.one:
        print("\n" + json.dumps(train(int(asked.one[0]), asked.one[1])))
        return
    end = time.monotonic() + 60 * asked.minutes
    for seed in range(SEEDS):
        for side in SIDES:
            known = {(row["seed"], row["side"]) for row in load(PATH)}
            if (seed, side) in known or time.monotonic() > end:
                continue
            command = [sys.executable, __file__, "--one", str(seed), side]
            found = last_line(command, {}, 300.0)
            if "error" in found:
                raise SystemExit(f"seed {seed}, {side}: {found['error']}")
            append(
                PATH, "cpu", {"seed": seed, "side": side, "commit": commit(), **found}
            )
    show()


if __name__ == "__main__":
    main()
