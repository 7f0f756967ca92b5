"""Draw where the time of a sweep goes, from the recorded JSON: cost.svg beside this file.

python studies/tuning_cost/plot.py        (needs matplotlib)
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
PARTS = {
    "compile": "#3b6ea8",
    "verify": "#5f9e6e",
    "measure": "#b55d60",
    "the rest": "#bbbbbb",
}


def parts_of(arm: dict) -> dict[str, float]:
    own = {
        name: sum(trial["step_s"].get(name, 0.0) for trial in arm["trials"])
        for name in ("compile", "verify", "measure")
    }
    return own | {"the rest": max(0.0, arm["wall_s"] - sum(own.values()))}


def main() -> None:
    data = json.loads((HERE / "cpu" / "compare.json").read_text())
    growth = json.loads((HERE / "growth.json").read_text())["rows"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=(3, 2))

    names = ["loop, 42 settings", "loop, the same 24 trials", "--jobs 1", "--jobs 2"]
    run = {(str(t["config"]), t["batch_size"]) for t in data["many"]["trials"]}
    strict = sum(
        t["wall_s"]
        for t in data["naive"]["trials"]
        if (str(t["config"]), t["batch_size"]) in run
    )
    left.barh(names[0], data["naive"]["wall_s"], color=PARTS["the rest"])
    left.barh(names[1], strict, color=PARTS["the rest"])
    begin = 0.0
    for name, seconds in parts_of(data["one"]).items():
        left.barh(names[2], seconds, left=begin, color=PARTS[name], label=name)
        begin += seconds
    many = parts_of(data["many"])
    timed = many["verify"] + many["measure"]
    left.barh(names[3], data["many"]["wall_s"] - timed, color=PARTS["compile"])
    left.barh(
        names[3],
        timed,
        left=data["many"]["wall_s"] - timed,
        color=PARTS["measure"],
    )
    left.invert_yaxis()
    left.set_xlabel("seconds, 2 CPU cores")
    left.legend(frameon=False, fontsize=8)

    counts = [row["trials"] for row in growth]
    right.plot(
        counts, [row["wall_ms_per_trial"] for row in growth], "o-", label="search"
    )
    right.plot(
        counts, [row["report_ms_per_trial"] for row in growth], "s-", label="report"
    )
    right.axhline(20, color="#b55d60", linestyle=":", label="target")
    right.set_ylim(0, 22)
    right.set_xlabel("trials")
    right.set_ylabel("tuner's own ms per trial")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(HERE / "cost.svg")


if __name__ == "__main__":
    main()
