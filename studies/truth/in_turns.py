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
from pathlib import Path

import numpy as np
from ground_truth import ROUNDS, measure_all
from models import EAGER, HERE
from store import load

FOLDER = HERE / "in_turns"


def tune(model: str, noise: str, count: int, folder: Path, first_seed: int) -> None:
    command = [sys.executable, str(HERE / "tunes.py"), "--model", model, "--noise", noise]
    command += ["--count", str(count), "--anyway", "--folder", str(folder)]
    subprocess.run([*command, "--first-seed", str(first_seed)], check=True)


def show(model: str, folder: Path) -> None:
    """Figures of tunes against all rounds of the one truth process of the same turn.

    That process has an error of its own, as large as the spread of processes.
    """
    truth, settings = load(folder / f"truth_{model}.json"), set[str]()
    by_turn: dict[tuple[int, str], float] = {}
    for row in truth:
        settings.add(row["setting"])
        ratios = np.asarray(row["eager_us"]) / np.asarray(row["compiled_us"])
        by_turn[sum(key[1] == row["setting"] for key in by_turn), row["setting"]] = np.median(
            ratios
        )
    turns = len(truth) // len(settings)
    tunes = load(folder / f"tunes_{model}.json")
    for noise in ("quiet", "noisy"):
        rows = [row for row in tunes if row["noise"] == noise]
        at = [(index * turns // len(rows), row) for index, row in enumerate(rows)]
        known = [
            (by_turn[turn, row["pick"]], row["speedup"]) for turn, row in at if row["pick"] != EAGER
        ]
        errors = [abs(value / true - 1) for true, (value, *_) in known]
        held = sum(low <= true <= high for true, (_, low, high) in known)
        print(
            f"{model} {noise}: {len(known)} figures, median error {np.median(errors):.1%}, "
            f"worst {max(errors):.1%}, {held} intervals hold the truth of their turn"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cnn:6,mlp:10", help="name:turns, comma list")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--tunes", type=int, default=1, help="quiet ones and noisy ones in a turn")
    parser.add_argument("--first-seed", type=int, default=0, help="of tunes; one for each host")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if args.show:
        for path in sorted(args.folder.glob("truth_*.json")):
            show(path.stem.removeprefix("truth_"), args.folder)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    for model, turns in (part.split(":") for part in args.models.split(",")):
        for turn in range(1, int(turns) + 1):
            measure_all([model], "cpu", turn, ROUNDS, args.folder, wait=False)
            for noise in ("quiet", "noisy"):
                tune(model, noise, turn * args.tunes, args.folder, args.first_seed)


if __name__ == "__main__":
    main()
