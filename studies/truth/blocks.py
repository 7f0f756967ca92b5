"""Do short blocks help where others keep disturbing? The same measurement with and without them.

    python studies/truth/blocks.py --noise quiet --count 12
    python studies/truth/blocks.py --noise noisy --count 12

In one process the MLP's best setting is timed against eager again and again by autocompile's own
``paired_blocks`` with short blocks allowed and not allowed in turn, at about the limits of a
finalist (64 rounds for 96, and a pace that knows nothing of other processes). Every measurement's
estimate goes to ``busy/blocks.json``; printed is how wide their intervals are, and how far the
estimates are apart, which on such a machine is also how far its states are apart.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from models import HERE, MODELS, make
from store import append, commit, last_line, load, neighbour

from autocompile.trial import measure
from autocompile.trial.measure import Limits, Timed, paired_blocks

MODEL, SETTING = "mlp", "reduce-overhead"
LIMITS = Limits(half_width=0.01, max_rounds=64, max_s=2.0, block_s=0.03, patience=3.0)
NEVER = 10**9


def times(count: int) -> list[dict[str, Any]]:
    """In a process of its own."""
    import torch
    from autocompile.trial.pace import Pace
    from autocompile.trial.strain import Strain

    kwargs = MODELS[MODEL].settings["cpu"][SETTING]
    sides = [make(MODEL, "cpu", None), make(MODEL, "cpu", kwargs)]
    eager, compiled = (Timed(side.call, lambda: None, side.context) for side in sides)
    cpu, enough, found = torch.device("cpu"), measure._MANY, []
    for number in range(count):
        for short in (False, True):
            measure._MANY = enough if short else NEVER
            strain, began = Strain(cpu, Pace(cpu)), time.monotonic()
            seen = paired_blocks(eager, compiled, lambda: None, LIMITS, number, strain)
            row = {"short": short, "speedup": round(seen.speedup.value, 5)}
            row |= {"half_width": round(seen.speedup.half_width, 5), "calls": list(seen.calls)}
            row |= {"rounds": len(seen.eager_s), "disturbed": len(seen.disturbed)}
            found.append({**row, "wall_s": round(time.monotonic() - began, 2)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--noise", choices=("quiet", "noisy"), default="quiet")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--folder", type=Path, default=HERE / "busy", help="for the JSON")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps({"found": times(args.count)}), flush=True)
        return
    path = args.folder / "blocks.json"
    with tempfile.TemporaryDirectory(prefix="truth-") as cache, neighbour(args.noise, 0):
        command = [sys.executable, __file__, "--one", "--count", str(args.count)]
        told = last_line(command, {"TORCHINDUCTOR_CACHE_DIR": cache}, 1200)
    if "error" in told:
        raise SystemExit(told["error"])
    for row in told["found"]:
        append(path, "cpu", {"noise": args.noise, "commit": commit(), **row})
    for noise in ("quiet", "noisy"):
        for short in (False, True):
            ours = [r for r in load(path) if (r["noise"], r["short"]) == (noise, short)]
            if len(ours) > 1:
                logs = [math.log(r["speedup"]) for r in ours]
                width = statistics.median(r["half_width"] for r in ours)
                said = f"{noise} {'short' if short else 'long'}: {len(ours)} measurements, "
                said += f"{math.exp(statistics.median(logs)):.3f}x, interval ±{100 * width:.1f} %, "
                said += f"{100 * statistics.stdev(logs):.1f} % apart, "
                print(said + f"{statistics.median(r['wall_s'] for r in ours):.1f} s")


if __name__ == "__main__":
    main()
