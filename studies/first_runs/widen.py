"""Count the intervals of a report anew that were recorded with 1.5 % between runs.

    python studies/first_runs/widen.py RECORDED.json WIDENED.json

``two_cores/ppo_breakout.json`` was made so of ``cpu_xeon/ppo_breakout.json`` at 805c3e07: what the
sets of the run explain of a width stays, and the part of other runs is that of today's rule.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

BEFORE, NOW = (1.96 * 0.015) ** 2, (1.96 * 0.035) ** 2


def widen(found: Any, key: str = "", above: str = "") -> None:
    """Speed-ups and throughputs in place; not of exported code, which one process has timed."""
    if isinstance(found, list):
        for each in found:
            widen(each, key, above)
    elif isinstance(found, dict) and {"value", "low", "high"} <= set(found):
        if key in ("speedup", "throughput") and above != "exported":
            value = found["value"]
            for end in ("low", "high"):
                own = max(0.0, math.log(found[end] / value) ** 2 - BEFORE)
                sign = 1 if end == "high" else -1
                is_exact = found[end] == value
                wide = 0.0 if is_exact else math.sqrt(own + NOW)
                found[end] = value * math.exp(sign * wide)
    elif isinstance(found, dict):
        for name, each in found.items():
            widen(each, name, key)


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    widen(report)
    Path(sys.argv[2]).write_text(json.dumps(report, indent=1, ensure_ascii=False))
