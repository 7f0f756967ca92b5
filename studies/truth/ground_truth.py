"""The true speed-ups, measured at length by a script that shares no code with autocompile.

    python studies/truth/ground_truth.py                 # about 23 minutes on two cores
    python studies/truth/ground_truth.py --device cuda --processes 3 --rounds 100
    python studies/truth/ground_truth.py --models mlp --processes 1 --rounds 10 --folder smoke

Each setting gets fresh processes with an empty compiler cache. In each, a block of eager calls and
a block of compiled calls alternate in random order; the processes of all settings come in random
order too. Before and after each round a yardstick is timed, products of matrices that are always
the same: a virtual machine has neighbours that no counter shows. Rounds go on until 300 calm ones
are there, or four times as many in all. What is there already is not measured again. Raw times go
to ``<device>/truth_<model>.json``, in microseconds per call.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import EAGER, HERE, MODELS, Side, make, of_device
from store import append, last_line, load

BLOCK_S = 0.025
WARM_ROUNDS = 20
SAME = 0.01  # settings within 1 % of the best are as good as it
RESAMPLES = 2000
CALM = 1.08  # times the yardstick's 5 % quantile
MOST = 4  # rounds for each calm one that is wanted


def block_us(side: Side, calls: int, synchronize: Callable[[], None]) -> float:
    """Microseconds per call."""
    call = side.call
    with side.context():
        synchronize()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        synchronize()
        end = time.perf_counter_ns()
    return (end - begin) / 1e3 / calls


def make_yardstick() -> Callable[[], float]:
    """Something whose time says how fast the machine is just now, in microseconds."""
    import torch

    left, right = torch.rand(160, 160), torch.rand(160, 160)

    def some() -> float:
        begin = time.perf_counter_ns()
        for _ in range(10):
            left @ right
        return (time.perf_counter_ns() - begin) / 1e4

    return lambda: min(some(), some(), some())


def measure(
    name: str, setting: str, device: str, rounds: int, seed: int, known_us: float
) -> dict[str, Any]:
    """In a process of its own: one setting against eager.

    ``known_us`` is what the yardstick took in other processes.
    """
    import torch

    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    sides = (make(name, device, None), make(name, device, MODELS[name].settings[device][setting]))
    began = time.perf_counter()
    block_us(sides[1], 1, synchronize)
    first_s = time.perf_counter() - began
    calls = []
    for side in sides:
        block_us(side, 10, synchronize)
        once_us = float(np.median([block_us(side, 5, synchronize) for _ in range(5)]))
        calls.append(max(1, round(BLOCK_S * 1e6 / once_us)))
    order = random.Random(seed)
    times: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.freeze()
    gc.disable()
    yardstick, yard_us, calm = make_yardstick(), [], 0
    for turn in range(WARM_ROUNDS + MOST * rounds):
        before_us, here = yardstick(), [0.0, 0.0]
        for index in order.sample((0, 1), 2):
            here[index] = block_us(sides[index], calls[index], synchronize)
        if turn < WARM_ROUNDS:
            continue
        for kept, us in zip(times, here, strict=True):
            kept.append(float(f"{us:.4g}"))
        yard_us.append(float(f"{max(before_us, yardstick()):.4g}"))
        calm += yard_us[-1] <= CALM * min(known_us, float(np.quantile(yard_us, 0.05)))
        if calm >= rounds:
            break
    return {
        "first_call_s": round(first_s, 2),
        "threads": torch.get_num_threads(),
        "calls": calls,
        "eager_us": times[0],
        "compiled_us": times[1],
        "yard_us": yard_us,
        "known_us": min(known_us, float(np.quantile(yard_us, 0.05))),
    }


def measure_all(names: list[str], device: str, processes: int, rounds: int, folder: Path) -> None:
    """Every missing process, in random order, model by model."""
    for name in names:
        path = folder / f"truth_{name}.json"
        there = {(row["setting"], row["process"]) for row in load(path)}
        settings = MODELS[name].settings[device]
        jobs = [(s, p) for p in range(processes) for s in settings if (s, p) not in there]
        random.Random(name).shuffle(jobs)
        for setting, process in jobs:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="truth-") as cache:
                places = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
                command = [sys.executable, __file__, "--one", name, setting, str(process)]
                command += ["--device", device, "--rounds", str(rounds)]
                command += ["--known-us", str(best_yard_us(load(path)))]
                found = last_line(command, places, 1200)
            append(path, device, {"setting": setting, "process": process, **found})
            said = found.get("error") or f"{np.median(ratios(found, found['known_us'])):.3f}x"
            print(f"{name} {setting} {process}: {said}, {time.monotonic() - began:.0f} s")


def best_yard_us(rows: list[dict[str, Any]]) -> float:
    """What the yardstick takes where nothing disturbs it."""
    return min((row["known_us"] for row in rows if "error" not in row), default=1e9)


def ratios(row: dict[str, Any], yard_us: float) -> np.ndarray:
    """Eager time over compiled time, calm round by calm round; all where too few are calm."""
    every = np.asarray(row["eager_us"]) / np.asarray(row["compiled_us"])
    calm = every[np.asarray(row["yard_us"]) <= CALM * yard_us]
    return calm if calm.size >= 30 else every


@dataclass(frozen=True)
class Truth:
    """One setting: its speed-up with a 95 % interval, and the median of each process."""

    value: float
    low: float
    high: float
    processes: tuple[float, ...]


def analyse(rows: list[dict[str, Any]]) -> dict[str, Truth]:
    """For each setting, the median of the calm rounds' ratios, pooled over its processes.

    The interval is a bootstrap over processes and, within each, over rounds. Eager is 1 exactly.
    """
    found, yard_us = {EAGER: Truth(1.0, 1.0, 1.0, ())}, best_yard_us(rows)
    for setting in dict.fromkeys(row["setting"] for row in rows):
        ours = [ratios(r, yard_us) for r in rows if r["setting"] == setting and "error" not in r]
        if not ours:
            continue
        draw = np.random.default_rng(0)
        again = [
            np.median(np.concatenate([draw.choice(ours[i], ours[i].size) for i in picked]))
            for picked in draw.integers(0, len(ours), (RESAMPLES, len(ours)))
        ]
        low, high = np.quantile(again, (0.025, 0.975))
        each = tuple(float(np.median(r)) for r in ours)
        found[setting] = Truth(float(np.median(np.concatenate(ours))), low, high, each)
    return found


def ties(truth: dict[str, Truth]) -> list[str]:
    """The settings within 1 % of the best one, eager among them where nothing is faster."""
    best = max(t.value for t in truth.values())
    return [name for name, t in truth.items() if t.value * (1 + SAME) >= best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="comma list; all of the device if left out")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--folder", type=Path, help="for the JSON; beside this file if left out")
    parser.add_argument("--known-us", type=float, default=1e9, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, setting, process = args.one
        row = measure(name, setting, args.device, args.rounds, int(process), args.known_us)
        print(json.dumps(row), flush=True)
        return
    names = args.models.split(",") if args.models else of_device(args.device)
    folder = args.folder or HERE / args.device
    measure_all(names, args.device, args.processes, args.rounds, folder)
    for name in names:
        truth = analyse(load(folder / f"truth_{name}.json"))
        for setting, t in truth.items():
            tied = "tied for best" if setting in ties(truth) else ""
            print(f"{name:5} {setting:28} {t.value:.3f} [{t.low:.3f}, {t.high:.3f}] {tied}")


if __name__ == "__main__":
    main()
