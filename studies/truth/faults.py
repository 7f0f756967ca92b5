"""Where PPO's two speeds come from: page faults of each call, in fresh processes.

    python studies/truth/faults.py --count 8

Half of the processes run with glibc's defaults, half with the variables of ``models.py``, by turns.
Each times eager and ``torch.compile()`` in blocks of three calls and counts the pages that the
kernel had to hand out meanwhile. Goes to ``<device>/faults_ppo.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from typing import Any

import numpy as np
from models import HERE, MODELS, Side, make
from store import append, last_line, load

CALLS, BLOCKS, WARM = 3, 40, 10


def block(side: Side) -> tuple[float, float]:
    """Milliseconds and page faults of a call."""
    with side.context():
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        began = time.perf_counter()
        for _ in range(CALLS):
            side.call()
        took = time.perf_counter() - began
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return 1e3 * took / CALLS, faults / CALLS


def measure(model: str) -> dict[str, Any]:
    """In a process of its own: medians of both sides."""
    sides = {"eager": make(model, "cpu", None), "default": make(model, "cpu", {})}
    for side in sides.values():
        for _ in range(WARM):
            block(side)
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(BLOCKS):
        for name in random.sample(list(sides), len(sides)):
            seen[name].append(block(sides[name]))
    found: dict[str, Any] = {}
    for name, blocks in seen.items():
        took_ms, faults = np.median(blocks, axis=0)
        found[name] = {
            "ms": round(float(took_ms), 3),
            "page_faults": round(float(faults)),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="ppo")
    parser.add_argument(
        "--count", type=int, default=8, help="of processes, those there included"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.model)), flush=True)
        os._exit(0)
    path = HERE / "cpu" / f"faults_{args.model}.json"
    for number in range(len(load(path)), args.count):
        keeps = bool(number % 2)
        with tempfile.TemporaryDirectory() as cache:
            places = {"TORCHINDUCTOR_CACHE_DIR": cache}
            extra = MODELS[args.model].environment if keeps else {}
            command = [sys.executable, __file__, "--one", "--model", args.model]
            found = last_line(command, {**places, **extra}, 600)
        append(path, "cpu", {"process": number, "keeps_memory": keeps, **found})
        print(
            f"{number}: {'kept' if keeps else 'glibc as it comes'}: {found}", flush=True
        )


if __name__ == "__main__":
    main()
