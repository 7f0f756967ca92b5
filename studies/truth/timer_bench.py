"""The same choice as most people make it: time one setting after the other, take the fastest.

    python studies/truth/timer_bench.py --noise quiet --count 10
    python studies/truth/timer_bench.py --noise noisy --count 10 --models mlp

Each run is a fresh process with an empty compiler cache that compiles eager's rivals in turn
(Dynamo is reset in between) and times each of them in three ways:

- ``Timer``: ``torch.utils.benchmark.Timer(...).blocked_autorange()`` as it comes: one thread;
- ``Timer, all threads``: the same with as many threads as torch uses otherwise;
- ``loop``: ten calls to warm up, then the mean of a hundred by ``time.perf_counter``.

Results go to ``cpu/timer.json``; ``--count`` is about all that are there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models import EAGER, HERE, MODELS, make, of_device
from store import append, last_line, load, neighbour


def loop_s(call: Callable[[], Any]) -> float:
    """Seconds of a call, naively."""
    for _ in range(10):
        call()
    begin = time.perf_counter()
    for _ in range(100):
        call()
    return (time.perf_counter() - begin) / 100


def times(model: str) -> dict[str, dict[str, float]]:
    """In a process of its own: seconds of a call, for each way and each setting."""
    import torch
    from torch.utils.benchmark import Timer

    def timer_s(call: Callable[[], Any], **threads: int) -> float:
        timer = Timer("call()", globals={"call": call}, **threads)
        return float(timer.blocked_autorange().median)

    count = torch.get_num_threads()
    found: dict[str, dict[str, float]] = {
        "loop": {},
        "Timer, all threads": {},
        "Timer": {},
    }
    for setting, kwargs in {EAGER: None, **MODELS[model].settings["cpu"]}.items():
        torch._dynamo.reset()
        side = make(model, "cpu", kwargs)
        with side.context():
            found["loop"][setting] = loop_s(side.call)
            found["Timer, all threads"][setting] = timer_s(side.call, num_threads=count)
            found["Timer"][setting] = timer_s(side.call)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--noise", choices=("quiet", "noisy"), default="quiet")
    parser.add_argument(
        "--count", type=int, default=10, help="of runs, those there included"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="seed; without those before it"
    )
    parser.add_argument("--models", help="comma list; all of them if left out")
    parser.add_argument(
        "--folder", type=Path, help="for the JSON; beside this file if left out"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(times(args.one)), flush=True)
        return
    path = (args.folder or HERE / "cpu") / "timer.json"
    for model in args.models.split(",") if args.models else of_device("cpu"):
        series = {"model": model, "noise": args.noise}
        there = {row["seed"] for row in load(path) if series.items() <= row.items()}
        for seed in sorted({*range(args.first, args.count)} - there):
            began = time.monotonic()
            with (
                tempfile.TemporaryDirectory(prefix="truth-") as cache,
                neighbour(args.noise, seed),
            ):
                command = [sys.executable, __file__, "--one", model]
                found = last_line(command, {"TORCHINDUCTOR_CACHE_DIR": cache}, 900)
            if "error" in found:
                append(path, "cpu", {**series, "method": "loop", "seed": seed, **found})
                print(f"{model} {args.noise} {seed}: {found['error']}", flush=True)
                continue
            for method, seconds in found.items():
                gains = {
                    name: round(seconds[EAGER] / s, 5) for name, s in seconds.items()
                }
                pick = max(gains, key=lambda name: gains[name])
                row = {"method": method, **series, "seed": seed, "pick": pick}
                append(path, "cpu", {**row, "speedup": [gains[pick]], "all": gains})
                print(f"{model} {args.noise} {seed} {method}: {pick}", flush=True)
            print(f"  {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
