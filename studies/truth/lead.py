"""How the length of a block and the calls before it change a ratio. Nothing here is autocompile's.

    python studies/truth/lead.py --models ppo,cnn --processes 6      # about four minutes

In each fresh process eager mode and plain ``torch.compile()`` take turns in four ways, which take
turns themselves: blocks of 25 ms with nothing before, blocks of 20 ms
after 20 ms of untimed calls, the same with two other compiled copies between them (as in a race of
four), and blocks of 400 ms after 100 ms, in which what the other side leaves behind cannot matter.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from ground_truth import block_us
from models import HERE, MODELS, make
from store import append, last_line, load

WAYS = {  # seconds of a block, seconds before it, how many other sides, rounds of each turn
    "25 ms": (0.025, 0.0, 0, 10),
    "20 ms after 20 ms": (0.02, 0.02, 0, 10),
    "20 ms after 20 ms, two others between": (0.02, 0.02, 2, 10),
    "400 ms after 100 ms": (0.4, 0.1, 0, 2),
}
TURNS = 4


def measure(name: str, seed: int) -> dict[str, Any]:
    """In a process of its own: for each way, eager and compiled microseconds of each round."""
    order = random.Random(seed)
    copies = (None, {}, {"mode": "max-autotune-no-cudagraphs"}, {"dynamic": True})
    sides = [make(name, "cpu", kwargs) for kwargs in copies]
    once_us = []
    for side in sides:
        block_us(side, 20, lambda: None)
        once_us.append(
            float(np.median([block_us(side, 5, lambda: None) for _ in range(5)]))
        )
    found: dict[str, Any] = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way in order.sample(list(WAYS), len(WAYS)):
            block_s, lead_s, others, rounds = WAYS[way]
            for turn in range(rounds + 1):
                here = {}
                for index in order.sample(range(2 + others), 2 + others):
                    calls = [
                        max(1, round(s * 1e6 / once_us[index]))
                        for s in (lead_s, block_s)
                    ]
                    if lead_s:
                        block_us(sides[index], calls[0], lambda: None)
                    here[index] = block_us(sides[index], calls[1], lambda: None)
                if turn:  # the first round follows another way
                    found[way].append([float(f"{here[i]:.5g}") for i in (0, 1)])
    return found


def show(path: Path) -> None:
    """Median ratio of each way in each process, and how far it is from that of long blocks."""
    ratios: dict[str, list[float]] = {way: [] for way in WAYS}
    for row in load(path):
        for way in WAYS:
            eager, compiled = np.asarray(row[way]).T
            ratios[way].append(float(np.median(eager / compiled)))
    long = np.log(ratios["400 ms after 100 ms"])
    for way, found in ratios.items():
        apart = np.log(found) - long
        error = (
            apart.std(ddof=1) / np.sqrt(apart.size) if apart.size > 1 else float("nan")
        )
        each = " ".join(f"{r:.3f}" for r in found)
        print(
            f"{path.stem} {way}: {each}; from long blocks {apart.mean():+.1%} ± {error:.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="ppo,cnn,mlp")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=HERE / "lead")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))), flush=True)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    for process in range(0 if args.show else args.processes):
        for name in args.models.split(","):
            path = args.folder / f"{name}.json"
            if len(load(path)) > process:
                continue
            with tempfile.TemporaryDirectory(prefix="lead-") as cache:
                places = {"TORCHINDUCTOR_CACHE_DIR": cache, **MODELS[name].environment}
                command = [sys.executable, __file__, "--one", name, str(process)]
                append(
                    path, "cpu", {"process": process, **last_line(command, places, 600)}
                )
    for name in args.models.split(","):
        show(args.folder / f"{name}.json")


if __name__ == "__main__":
    main()
