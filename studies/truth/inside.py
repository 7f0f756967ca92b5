"""How to make one figure of the rounds of a process: what each estimate gives on recorded races.

    python studies/truth/inside.py           # measures nothing; a few seconds

Every set of a recorded race is one process. The sets of a series have one truth: an estimate is
the better, the nearer together they are. A row is a series (folder, model, setting, noise); a
cell has the standard deviation over its sets and the largest distance from their median, in
percent. Sets in which the host was slow are left out, as in the product.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from models import HERE
from replay import hodges_lehmann
from store import load

from autocompile.estimate.candidates import SLOWER

FOLDERS = ("cpu_races", "busy_races", "busy_second", "in_turns")
FEWEST = 9  # sets of a series
Estimate = Callable[[np.ndarray, np.ndarray], float]
ESTIMATES: dict[str, Estimate] = {
    "median of ratios": lambda eager, other: float(np.median(np.log(eager / other))),
    "Hodges-Lehmann": lambda eager, other: hodges_lehmann(np.log(eager / other)),
    "ratio of medians": lambda eager, other: math.log(
        np.median(eager) / np.median(other)
    ),
    "ratio of lower quartiles": lambda eager, other: math.log(
        np.quantile(eager, 0.25) / np.quantile(other, 0.25)
    ),
    "ratio of minima": lambda eager, other: math.log(eager.min() / other.min()),
}


def series() -> dict[str, list[list[float]]]:
    """By series, and in it by estimate, a logarithm for each set."""
    found: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in ESTIMATES])
    for folder in FOLDERS:
        for path in sorted((HERE / folder).glob("tunes_*.json")):
            for run in load(path):
                sets = run.get("raced") or []
                limit = SLOWER * min((one["reference_us"] for one in sets), default=0.0)
                for one in (one for one in sets if one["reference_us"] <= limit):
                    eager = np.asarray(one["eager_us"])
                    for setting, us in one["sides_us"].items():
                        model = path.stem.removeprefix("tunes_")
                        name = f"{folder} {model} {setting} {run['noise']}"
                        for logs, estimate in zip(
                            found[name], ESTIMATES.values(), strict=True
                        ):
                            logs.append(estimate(eager, np.asarray(us)))
    return {name: logs for name, logs in found.items() if len(logs[0]) >= FEWEST}


def main() -> None:
    every = series()
    print(f"| series | sets | {' | '.join(ESTIMATES)} |")
    print("|---|---|" + "---|" * len(ESTIMATES))
    for name, by_estimate in every.items():
        print(
            f"| {name} | {len(by_estimate[0])} | {' | '.join(map(cell, by_estimate))} |"
        )
    spread = [
        np.mean([np.std(logs[i]) for logs in every.values()])
        for i in range(len(ESTIMATES))
    ]
    print(f"| mean | | {' | '.join(f'**{100 * one:.1f}**' for one in spread)} |")


def cell(logs: list[float]) -> str:
    off = np.abs(np.asarray(logs) - np.median(logs))
    return f"{100 * np.std(logs):.1f}, {100 * off.max():.0f}"


if __name__ == "__main__":
    main()
