"""Draw what is recorded here, ``search.svg``: regret over time, and what each table has to give.

python studies/search/plot.py        (needs matplotlib)
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
NAMES = {
    "portfolio": ("autocompile", "#3b6ea8"),
    "tpe": ("Optuna TPE", "#b55d60"),
    "gp": ("Optuna GP", "#8d6cab"),
    "random": ("random", "#5f9e6e"),
    "list": ("order of the list", "#bbbbbb"),
}


def regret(axes: Any, strategies: dict[str, Any], quantile: float, title: str) -> None:
    """One line for each sampler."""
    for name, (label, color) in NAMES.items():
        if not (own := strategies.get(name)):
            continue
        times = sorted(map(int, own))
        values = [100 * float(np.quantile(own[str(t)], quantile)) for t in times]
        axes.plot(
            times,
            values,
            color=color,
            label=label,
            linewidth=2 if name == "portfolio" else 1,
        )
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("seconds of the run")
    axes.set_ylim(bottom=0)


def gains(axes: Any, device: str) -> None:
    """Of each table: the best setting, plain ``torch.compile()``, and the best eager mode."""
    rows = []
    for path in sorted((HERE / device / "tables").glob("*.json")):
        data = json.loads(path.read_text())
        for size in dict.fromkeys(row["batch_size"] for row in data["rows"]):
            ok = [
                r
                for r in data["rows"]
                if r["batch_size"] == size and r["outcome"] == "ok"
            ]
            ok = [r for r in ok if r["log_speedup"] is not None]
            plain = {**data["eager"], "backend": "inductor"}
            found = {
                "best": max(r["log_speedup"] for r in ok),
                "plain": next(
                    (r["log_speedup"] for r in ok if r["config"] == plain), None
                ),
                "eager": max(
                    r["log_speedup"] for r in ok if r["config"]["backend"] == "eager"
                ),
            }
            name = data["model"] if size is None else f"{data['model']}, {size}"
            rows.append((name, found))
    rows.sort(key=lambda row: row[1]["best"])
    marks = {
        "best": ("o", "#3b6ea8"),
        "plain": ("x", "#b55d60"),
        "eager": ("|", "#5f9e6e"),
    }
    labels = {
        "best": "best",
        "plain": "plain torch.compile()",
        "eager": "best eager mode",
    }
    for key, (mark, color) in marks.items():
        points = [
            (math.exp(f[key]), y) for y, (_, f) in enumerate(rows) if f[key] is not None
        ]
        axes.plot(*zip(*points, strict=True), mark, color=color, label=labels[key])
    axes.axvline(1, color="#bbbbbb", linewidth=1)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
    axes.set_xscale("log", base=2)
    axes.set_xticks((0.5, 1, 2, 4), ("0.5", "1", "2", "4"))
    axes.set_xlabel(f"times as fast as eager ({device})")
    axes.legend(frameon=False, fontsize=7, loc="lower right")


def main() -> None:
    models = json.loads((HERE / "cpu" / "replay.json").read_text())["models"]
    strategies: dict[str, dict[str, list[float]]] = {}
    for model in models.values():
        for name, own in model.items():
            for seconds, values in own["regret"].items():
                strategies.setdefault(name, {}).setdefault(seconds, []).extend(values)
    figure, axes = plt.subplots(2, 2, figsize=(10, 8))
    regret(axes[0, 0], strategies, 0.5, "median regret, %")
    regret(axes[0, 1], strategies, 0.95, "95th percentile of regret, %")
    axes[0, 0].legend(frameon=False, fontsize=8)
    gains(axes[1, 0], "cpu")
    gains(axes[1, 1], "cuda")
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(HERE / "search.svg")


if __name__ == "__main__":
    main()
