"""How much higher than in races is the search's figure of the setting that wins the search?

Tables hold one trial of each setting, as the search makes it, and three sets of a race. The winner
is the setting with the largest speed-up of its trial; of others nothing is selected. If a trial
counted as a set of a race, as much of this as a third would be in the reported figure.

    python studies/search/winners.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean, median
from typing import Any

HERE = Path(__file__).parent


def log_speedup(one: dict[str, Any]) -> float:
    pairs = zip(one["eager_s"], one["compiled_s"], strict=True)
    return median(math.log(eager_s / compiled_s) for eager_s, compiled_s in pairs)


def of_table(table: dict[str, Any]) -> list[tuple[float, float]]:
    """Of each compiled setting that was raced: its log speed-up in its trial, and in the sets."""
    found = []
    for row in table["rows"]:
        sets = [one for one in row.get("sets") or () if one["outcome"] == "ok"]
        is_eager = row["config"].get("backend") == "eager"
        is_plain = is_eager and not row["config"].get("optimizer")
        has_both = row["outcome"] == "ok" and row.get("searched") and len(sets) == 3
        if has_both and not is_plain:
            raced = fmean(log_speedup(one) for one in sets)
            found.append((log_speedup(row["searched"]), raced))
    return found


if __name__ == "__main__":
    winners, every = [], []
    for path in sorted(HERE.glob("*/tables/*.json")):
        found = of_table(json.loads(path.read_text()))
        if len(found) < 3:
            continue
        every += [searched - raced for searched, raced in found]
        searched, raced = max(found)
        winners.append(searched - raced)
    for name, values in (("the winner", winners), ("every setting", every)):
        mean, middle = (100 * math.expm1(x) for x in (fmean(values), median(values)))
        print(f"{name}: median {middle:+.1f} %, mean {mean:+.1f} % ({len(values)})")
