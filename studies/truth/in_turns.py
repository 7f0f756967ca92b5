"""Truth and tunes in turns, so that both see the host in the same minutes.

    python studies/truth/in_turns.py --models cnn:6,mlp:6 --tunes 2
    python studies/truth/in_turns.py --show              # each tune against the truth of its turn

A virtual host changes its speed for minutes, and the speed-up of one setting with it (a CNN's 1.27
becomes 1.17). So a truth measured an hour earlier is another quantity. Here each turn is one truth
process of each setting, quiet tunes and noisy ones. Nobody waits for a calm host; the truth is
that of the calm rounds. JSON goes to ``studies/truth/in_turns``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ground_truth import ROUNDS, measure_all
from models import EAGER, HERE
from store import load

FOLDER = HERE / "in_turns"


def tune(model: str, noise: str, count: int, folder: Path, first_seed: int) -> None:
    command = [
        sys.executable,
        str(HERE / "tunes.py"),
        "--model",
        model,
        "--noise",
        noise,
    ]
    command += ["--count", str(count), "--anyway", "--folder", str(folder)]
    subprocess.run([*command, "--first-seed", str(first_seed)], check=True)


def figures(model: str, folder: Path) -> Iterator[tuple[str, float, float]]:
    """(condition, error, half the interval) of each figure, as logarithms.

    The truth is all rounds of the one truth process of the same turn, which has an error of its
    own, as large as processes are apart.
    """
    truth: dict[str, list[float]] = defaultdict(list)
    for row in load(folder / f"truth_{model}.json"):
        ratios = np.asarray(row["eager_us"]) / np.asarray(row["compiled_us"])
        truth[row["setting"]].append(float(np.median(ratios)))
    turns = min(map(len, truth.values()))
    for noise in ("quiet", "noisy"):
        rows = [r for r in load(folder / f"tunes_{model}.json") if r["noise"] == noise]
        for index, row in enumerate(rows):
            if row["pick"] != EAGER:
                value, low, high = np.log(row["speedup"])
                true = np.log(truth[row["pick"]][index * turns // len(rows)])
                yield noise, abs(value - true), (high - low) / 2


def show(folder: Path) -> None:
    """Errors by model and condition; and what holds if runs are apart too, by so much."""
    every = []
    for path in sorted(folder.glob("truth_*.json")):
        model = path.stem.removeprefix("truth_")
        found = list(figures(model, folder))
        every += found
        for noise in ("quiet", "noisy"):
            rows = [(error, half) for which, error, half in found if which == noise]
            errors = [error for error, _ in rows]
            print(
                f"{model} {noise}: {len(rows)} figures, error {np.median(errors):.1%}, at most "
                f"{max(errors):.1%}; {sum(e <= h for e, h in rows)} intervals hold the truth"
            )
    for apart in (0.0, 0.01, 0.015, 0.02, 0.03):
        held = sum(error <= np.hypot(half, 1.96 * apart) for _, error, half in every)
        print(f"runs {apart:.1%} apart: {held} of {len(every)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", default="cnn:6,mlp:10", help="name:turns, comma list"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument(
        "--tunes", type=int, default=1, help="quiet ones and noisy ones in a turn"
    )
    parser.add_argument(
        "--first-seed", type=int, default=0, help="of tunes; one for each host"
    )
    parser.add_argument("--show", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if args.show:
        show(args.folder)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    for model, turns in (part.split(":") for part in args.models.split(",")):
        for turn in range(1, int(turns) + 1):
            measure_all([model], "cpu", turn, ROUNDS, args.folder, wait=False)
            for noise in ("quiet", "noisy"):
                tune(model, noise, turn * args.tunes, args.folder, args.first_seed)


if __name__ == "__main__":
    main()
