"""Print what each dimension brings by itself, and what ``fullgraph`` costs a call.

    python studies/dimensions/dimensions.py

The first from ``autocompile/search/prior.json``, which ``studies/search/learn.py`` fits to the
files here and to those of ``studies/search`` and ``studies/gpu``.
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
    for device in ("cpu", "cuda"):
        for row in json.loads((HERE / f"{device}.json").read_text("utf-8"))[
            "fullgraph"
        ]:
            value, low, high = row["speedup_over_without"]
            of = f"{value:.2f} [{low:.2f}, {high:.2f}]"
            us = f"{row['call_us']:.0f} | {row['call_us_without']:.0f}"
            print(f"| {device}, {row['target']}, {row['pair']} | {us} | {of} |")


if __name__ == "__main__":
    main()
