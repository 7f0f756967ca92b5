"""Draw what each dimension brings: <device>.svg beside this file.

python studies/dimensions/plot.py --device cpu        (needs matplotlib)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from dimensions import ALL, BASE, ROWS
from summary import best, is_new, recorded

HERE = Path(__file__).parent
COLOURS = {None: "#3b6ea8", 1: "#3b6ea8", 4: "#5f9e6e", 16: "#b55d60"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    every = recorded(args.device)
    rows = [BASE, *(r for r in ROWS if any(used(r, found) for found in every)), ALL]
    figure, panels = plt.subplots(
        1, len(every), figsize=(2.2 + 1.9 * len(every), 0.8 + 0.42 * len(rows)), squeeze=False
    )
    for axes, found in zip(panels[0], every, strict=True):
        sizes = sorted({s["batch_size"] for s in found["settings"]}, key=lambda size: size or 0)
        for number, size in enumerate(sizes):
            colour = COLOURS[size]
            for place, row in enumerate(rows):
                setting = best(row, size, found)
                if setting is None or not is_new(row, setting):
                    continue
                value, low, high = setting["speedup"]
                height = place + 0.5 * ((number + 0.5) / len(sizes) - 0.5)
                axes.plot([low, high], [height, height], color=colour, linewidth=1)
                named = f"batch {size}" if size and row == BASE else None
                axes.plot(value, height, "o", color=colour, markersize=4, label=named)
        axes.axvline(1, color="#999999", linewidth=1)
        axes.set_yticks(range(len(rows)), rows if axes is panels[0][0] else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(left=0.9)
        axes.set_title(found["model"], loc="left", fontsize=10)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        if len(sizes) > 1:
            axes.legend(fontsize=7, frameon=False)
    figure.supxlabel("speed-up over eager, with its 95 % interval", fontsize=8)
    figure.tight_layout()
    figure.savefig(args.out or HERE / f"{args.device}.svg")


def used(row: str, found: dict) -> bool:
    return any(row in s["uses"] and s["confirmed"] for s in found["settings"])


if __name__ == "__main__":
    main()
