"""How far runs of one setting are apart, beyond what their own sets explain.

    python studies/truth/apart.py           # measures nothing

Of each series of recorded tunes, every setting that two runs or more have raced in three sets or
more: the standard deviation of its figures over runs, what the spread of their sets makes of it
(one-way random effects), and the difference of the two variances. Sets of a slow host are left out
as in the product. In percent, as logarithms.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from models import HERE
from recount import FOLDERS, records
from store import load
from summary import table
from tunes import configs

from autocompile.estimate.candidates import candidates

LEAST = 3  # sets of a run


def runs_of(path: Path, model: str, noise: str) -> dict[str, list[list[float]]]:
    """By setting, the log ratios of each run's sets."""
    names = configs(model, "cpu")
    named = {name: config for config, name in names.items()}
    found: dict[str, list[list[float]]] = defaultdict(list)
    for run in load(path):
        if run.get("noise") == noise and "raced" in run:
            for c in candidates(records(run, model, named)):
                if not c.record.config.is_baseline and c.sets >= LEAST:
                    found[names[c.record.config]].append(list(c.logs.values()))
    return {name: runs for name, runs in found.items() if len(runs) > 1}


def main() -> None:
    rows, every = [], []
    for folder in sys.argv[1:] or FOLDERS:
        for path in sorted((HERE / folder).glob("tunes_*.json")):
            model = path.stem.removeprefix("tunes_")
            for noise in ("quiet", "noisy"):
                for name, runs in runs_of(path, model, noise).items():
                    seen = np.var([np.mean(logs) for logs in runs], ddof=1)
                    own = np.mean([np.var(logs, ddof=1) / len(logs) for logs in runs])
                    every.append((len(runs) - 1, seen, own))
                    apart = np.sqrt(max(0.0, seen - own))
                    spreads = (
                        f"{100 * x:.1f}" for x in (np.sqrt(seen), np.sqrt(own), apart)
                    )
                    rows.append([folder, model, noise, name, str(len(runs)), *spreads])
    head = [
        "host",
        "model",
        "condition",
        "setting",
        "runs",
        "runs apart",
        "by their sets",
    ]
    print(table([*head, "beyond them"], rows))
    weight, seen, own = np.asarray(every).T
    total, sets = (np.average(x, weights=weight) for x in (seen, own))
    print(
        f"\nall: {100 * np.sqrt(total):.1f} % apart, {100 * np.sqrt(sets):.1f} % by their sets"
    )
    beyond, each = np.sqrt(max(0.0, total - sets)), np.sqrt(np.maximum(0.0, seen - own))
    print(f"beyond them {100 * beyond:.1f} % (median {100 * np.median(each):.1f} %)")


if __name__ == "__main__":
    main()
