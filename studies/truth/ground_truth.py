"""The true speed-ups, measured at length by a script that shares no code with autocompile.

    python studies/truth/ground_truth.py                 # about 23 minutes on two cores
    python studies/truth/ground_truth.py --device cuda --processes 3 --rounds 100
    python studies/truth/ground_truth.py --models mlp --processes 1 --rounds 10 --folder smoke

Each setting gets fresh processes with an empty compiler cache. In each, a block of eager calls and
a block of compiled calls alternate in random order, 300 rounds of them; the processes of all
settings come in random order too. What is there already is not measured again. Raw times go to
``<device>/truth_<model>.json``, in microseconds per call.
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


def measure(name: str, setting: str, device: str, rounds: int, seed: int) -> dict[str, Any]:
    """In a process of its own: one setting against eager."""
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
    for turn in range(WARM_ROUNDS + rounds):
        for index in order.sample((0, 1), 2):
            us = block_us(sides[index], calls[index], synchronize)
            if turn >= WARM_ROUNDS:
                times[index].append(float(f"{us:.4g}"))
    return {
        "first_call_s": round(first_s, 2),
        "threads": torch.get_num_threads(),
        "calls": calls,
        "eager_us": times[0],
        "compiled_us": times[1],
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
                found = last_line(command, places, 1200)
            append(path, device, {"setting": setting, "process": process, **found})
            said = found.get("error") or f"{np.median(ratios(found)):.3f}x"
            print(f"{name} {setting} {process}: {said}, {time.monotonic() - began:.0f} s")


def ratios(row: dict[str, Any]) -> np.ndarray:
    """Eager time over compiled time, round by round."""
    return np.asarray(row["eager_us"]) / np.asarray(row["compiled_us"])


@dataclass(frozen=True)
class Truth:
    """One setting: its speed-up with a 95 % interval, and the median of each process."""

    value: float
    low: float
    high: float
    processes: tuple[float, ...]


def analyse(rows: list[dict[str, Any]]) -> dict[str, Truth]:
    """For each setting, the median of the rounds' ratios, pooled over its processes.

    The interval is a bootstrap over processes and, within each, over rounds. Eager is 1 exactly.
    """
    found = {EAGER: Truth(1.0, 1.0, 1.0, ())}
    for setting in dict.fromkeys(row["setting"] for row in rows):
        ours = [ratios(r) for r in rows if r["setting"] == setting and "error" not in r]
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
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, setting, process = args.one
        row = measure(name, setting, args.device, args.rounds, int(process))
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
