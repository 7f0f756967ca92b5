"""What a table of one setting for each shape could bring over one setting for all, in a run.

Of each shape the fastest setting counts by its calls timed alone in the search, and the sum is
compared with that of the best single setting by the same times. The fastest of several noisy times
is too fast, so this is the most that a table could bring.

    python studies/workloads/table.py runs/encoder-0001 ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

USUAL = (None, False, {}, [], "default", "none", "all", "model")
Times = dict[
    str, dict[str, float]
]  # by setting and shape, seconds of its calls in a pass


def times_of(run: Path) -> Times:
    times: Times = {}
    for file in sorted(run.glob("trials/*/result.json")):
        record = json.loads(file.read_text())
        if (
            record["role"] != "search"
            or record["outcome"] != "ok"
            or not record.get("kinds")
        ):
            continue
        config = record["config"]
        name = " ".join(f"{k}={v}" for k, v in config.items() if v not in USUAL)
        times[name] = {k["shape"]: k["calls"] * k["call_s"] for k in record["kinds"]}
    return times


def gain(times: Times) -> tuple[str, float]:
    """The best single setting, and how much less time a table would take, as a share."""
    single = min(times, key=lambda name: sum(times[name].values()))
    whole = sum(times[single].values())
    table = sum(min(t[shape] for t in times.values()) for shape in times[single])
    return single, 1 - table / whole


if __name__ == "__main__":
    every = {Path(place).name: times_of(Path(place)) for place in sys.argv[1:]}
    for place, times in every.items():
        name, share = gain(times)
        print(f"{place}: {share:.1%} less than {name}")
    to = Path(__file__).with_suffix(".json")
    to.write_text(json.dumps(every, indent=1) + "\n")
