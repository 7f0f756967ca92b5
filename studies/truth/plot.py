"""Draw the truth and what each run reported: <folder>.svg beside this file.

python studies/truth/plot.py --device cpu        (needs matplotlib)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from models import EAGER, HERE
from summary import runs, series, truths

RIGHT, WRONG, TRUE = "#3b6ea8", "#b55d60", "#999999"
REACH = 0.25  # points further from the truth are drawn at the edge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--folder", type=Path, help="of the JSON; beside this file if left out"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = args.folder or HERE / args.device
    true = truths(folder, args.device)
    found = {
        key: rows
        for key, rows in series(runs(folder, args.device)).items()
        if key[0] in true
    }
    models = list(dict.fromkeys(model for model, _, _ in found))
    rows_of = {m: [key for key in found if key[0] == m] for m in models}
    figure, panels = plt.subplots(
        len(models),
        1,
        figsize=(9, 1.2 + 0.42 * len(found) + 0.8 * len(models)),
        height_ratios=[len(rows_of[m]) + 1 for m in models],
        squeeze=False,
    )
    for axes, model in zip(panels[:, 0], models, strict=True):
        truth = true[model]
        for place, key in enumerate(rows_of[model]):
            for index, row in enumerate(found[key]):
                if "error" in row or row["pick"] not in truth or row["pick"] == EAGER:
                    continue
                value, *interval = row["speedup"]
                right = truth[row["pick"]].value
                height = place + 0.6 * ((index + 0.5) / len(found[key]) - 0.5)
                gap = value / right - 1
                inside = abs(gap) <= REACH
                holds = (
                    interval[0] <= right <= interval[1]
                    if interval
                    else abs(gap) <= 0.01
                )
                colour = RIGHT if holds else WRONG
                if inside and interval:
                    ends = [100 * (edge / right - 1) for edge in interval]
                    axes.plot(ends, [height, height], color=colour, linewidth=0.8)
                marker = "o" if inside else (">" if gap > 0 else "<")
                shown = 100 * max(-REACH, min(REACH, gap))
                axes.plot(shown, height, marker, color=colour, markersize=3)
        widest = [t for t in truth.values() if t.processes]
        low = min(100 * (t.low / t.value - 1) for t in widest)
        high = max(100 * (t.high / t.value - 1) for t in widest)
        axes.axvspan(low, high, color=TRUE, alpha=0.3, linewidth=0)
        axes.axvline(0, color=TRUE, linewidth=1)
        axes.set_yticks(
            range(len(rows_of[model])), [f"{m}, {n}" for _, n, m in rows_of[model]]
        )
        axes.set_xlim(-105 * REACH, 105 * REACH)
        axes.set_ylim(len(rows_of[model]) - 0.4, -0.6)
        axes.set_title(model, loc="left", fontsize=10)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel(
        "reported speed-up against the true one of the same setting, %\n"
        "(blue: the interval holds the truth or, without one, 1 % off at most; grey: the "
        f"truth's own interval; arrows: beyond {100 * REACH:.0f} %)",
        fontsize=8,
    )
    figure.tight_layout()
    figure.savefig(args.out or HERE / f"{folder.name}.svg")


if __name__ == "__main__":
    main()
