"""Truth and tunes in turns, so that both see the host in the same minutes.

    python studies/truth/in_turns.py --models cnn:6,mlp:6 --tunes 2

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

from ground_truth import ROUNDS, measure_all
from models import HERE

FOLDER = HERE / "in_turns"


def tune(model: str, noise: str, count: int, folder: Path, first_seed: int) -> None:
    command = [sys.executable, str(HERE / "tunes.py"), "--model", model, "--noise", noise]
    command += ["--count", str(count), "--anyway", "--folder", str(folder)]
    subprocess.run([*command, "--first-seed", str(first_seed)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cnn:6,mlp:10", help="name:turns, comma list")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--tunes", type=int, default=1, help="quiet ones and noisy ones in a turn")
    parser.add_argument("--first-seed", type=int, default=0, help="of tunes; one for each host")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for model, turns in (part.split(":") for part in args.models.split(",")):
        for turn in range(1, int(turns) + 1):
            measure_all([model], "cpu", turn, ROUNDS, args.folder, wait=False)
            for noise in ("quiet", "noisy"):
                tune(model, noise, turn * args.tunes, args.folder, args.first_seed)


if __name__ == "__main__":
    main()
