"""Print what each dimension brings by itself, and what ``fullgraph`` costs a call.

    python studies/dimensions/dimensions.py

The first from ``autocompile/search/prior.json``, which ``studies/search/learn.py`` fits to the
files here and to those of ``studies/search`` and ``studies/gpu``; the second from ``*/pairs.json``.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

HERE = Path(__file__).resolve().parent
PRIOR = HERE.parents[1] / "autocompile" / "search" / "prior.json"


def main() -> None:
    priors = json.loads(PRIOR.read_text("utf-8"))["priors"]
    kinds = [kind for kind in priors if kind not in ("cpu/forward", "cuda/forward")]
    names = sorted({name for kind in kinds for name in priors[kind]["effects"]})
    print(f"| | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    for name in names:
        found = [priors[kind]["effects"].get(name) for kind in kinds]
        cells = ["" if log is None else f"{math.exp(log):.2f}" for log in found]
        print(f"| {name} | {' | '.join(cells)} |")
    print(
        "\n| fullgraph on | µs of a call with it | without | its gain over that without |"
    )
    print("|---|---|---|---|")
    for path in sorted(HERE.glob("*/pairs.json")):
        for row in json.loads(path.read_text("utf-8")):
            ratio = row.get("left_out_over_stand_in")
            if row["pair"].startswith("fullgraph") and ratio:
                us = [row[side]["call_us"] for side in ("left_out", "stands_for_it")]
                where = f"{path.parent.name}, {row['target']}, {row['pair']}"
                value, low, high = ratio
                of = f"{value:.2f} [{low:.2f}, {high:.2f}]"
                print(f"| {where} | {us[0]:.0f} | {us[1]:.0f} | {of} |")


if __name__ == "__main__":
    main()
