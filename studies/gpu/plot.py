"""Draw what each hand-written setting brings and what its compile takes: ``h100.svg``.

Needs matplotlib.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
STYLES = {
    "eager": ("#999999", "o", "eager, other optimizers and formats"),
    "compile": ("#1f77b4", "s", "torch.compile(model)"),
    "reduce-overhead": ("#2ca02c", "^", 'mode="reduce-overhead"'),
    "max-autotune": ("#d62728", "v", 'mode="max-autotune"'),
    "descent": ("#ff7f0e", "D", "CUDA graphs and coordinate descent"),
    "step": ("#9467bd", "P", "whole step"),
    "blocks": ("#8c564b", "X", "repeated blocks"),
    "cudagraphs": ("#17becf", "*", 'backend="cudagraphs"'),
}


def family(row: dict) -> str:
    """What a setting is drawn as."""
    name = row["setting"]
    if row["spec"]["compiled"] == "step" and "capturable" in name:
        return "step"
    if name.startswith("frozen"):
        return "reduce-overhead"
    return next((f for f in STYLES if name.startswith(f)), "compile")


def main() -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.2), sharey=True)
    paths = sorted((HERE / "h100").glob("*.json"), reverse=True)
    labels = []
    for place, path in enumerate(paths):
        data = json.loads(path.read_text())
        rows = [r for r in data["rows"] if "compiled_ms" in r and r["process"] == 0]
        eager = median(t for r in data["rows"] for t in r.get("eager_ms", ()))
        labels.append(f"{data['model']}\n{eager:.2f} ms")
        for row in rows:
            color, marker, _ = STYLES[family(row)]
            look = {"color": color, "marker": marker, "linestyle": "", "alpha": 0.8}
            axes[0].plot(eager / median(row["compiled_ms"]), place, **look)
            if row["spec"]["compiled"]:
                axes[1].plot(max(0.5, row["compile_s"]), place, **look)
    for color, marker, text in STYLES.values():
        axes[0].plot([], [], color=color, marker=marker, linestyle="", label=text)
    axes[0].set_xscale("log")
    ticks = [0.5, 1, 2, 4, 8, 12]
    axes[0].set_xticks(ticks, [str(t) for t in ticks])
    axes[0].minorticks_off()
    axes[0].axvline(1, color="black", linewidth=0.6)
    axes[0].set_xlabel("times as fast as eager mode")
    axes[1].set_xscale("log")
    ticks = [1, 3, 10, 30, 100]
    axes[1].set_xticks(ticks, [str(t) for t in ticks])
    axes[1].minorticks_off()
    axes[1].set_xlabel("seconds of a cold compile, beside others")
    axes[0].set_yticks(range(len(paths)), labels, fontsize=8)
    for one in axes:
        one.grid(alpha=0.3)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="lower center", ncol=4, fontsize=8
    )
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(HERE / "h100.svg")


if __name__ == "__main__":
    main()
