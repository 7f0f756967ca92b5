"""The true speed-ups, measured at length by a script that shares no code with autocompile.

    python studies/truth/ground_truth.py                 # about 45 minutes on two calm cores
    python studies/truth/ground_truth.py --device cuda --processes 3
    python studies/truth/ground_truth.py --models mlp --processes 1 --rounds 10 --folder smoke

Each setting gets fresh processes with an empty compiler cache. In each, a block of eager calls and
a block of compiled calls alternate in random order, each after half as many untimed calls (what the
other side leaves behind changes a ratio by up to 3 %: ``lead.py``); the processes of all settings
come in random order too. Before and after each round a yardstick is timed, products of matrices
that are always the same: a virtual machine has neighbours that no counter shows. Rounds go on until
40 calm ones are there, or four times as many in all; a process without enough of them is kept, and
another one takes its place. What is there already is not measured again. Raw times go to
``<device>/truth_<model>.json``, in microseconds per call.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import EAGER, HERE, MODELS, Side, make, of_device
from store import append, last_line, load
from yardstick import make_yardstick

BLOCK_S, LEAD_S = 0.1, 0.05
ROUNDS = 40  # calm ones in each process
EARLIER_ROUNDS = 100  # of 25 ms with nothing before, in rows that have no ``leads``
WARM_ROUNDS = 5
SAME = 0.01  # settings within 1 % of the best are as good as it
RESAMPLES = 2000
CALM = 1.08  # times the yardstick's 5 % quantile
CALM_OF_MANY = 1.2  # beside many cores the yardstick is no steadier by itself
MANY = 4  # threads
MOST = 4  # rounds for each calm one that is wanted
ENOUGH = 0.3  # of the calm rounds that are wanted: with fewer a process tells nothing
TRIES = 3  # processes for each that is wanted
WAIT_S = 120.0  # for a calm moment before a process begins
BUSY = "busy"  # how a folder is named whose host is never calm: nobody waits, and all rounds count


def block_us(
    side: Side, calls: int, synchronize: Callable[[], None], lead: int = 0
) -> float:
    """Microseconds per call, after ``lead`` untimed ones."""
    call = side.call
    with side.context():
        for _ in range(lead):
            call()
        synchronize()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            call()
        synchronize()
        end = time.perf_counter_ns()
    return (end - begin) / 1e3 / calls


def measure(
    name: str, setting: str, device: str, rounds: int, seed: int, known_us: float
) -> dict[str, Any]:
    """In a process of its own: one setting against eager.

    ``known_us`` is what the yardstick took in other processes.
    """
    import torch

    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    sides = (
        make(name, device, None),
        make(name, device, MODELS[name].settings[device][setting]),
    )
    began = time.perf_counter()
    block_us(sides[1], 1, synchronize)
    first_s = time.perf_counter() - began
    calls, leads = [], []
    for side in sides:
        block_us(side, 10, synchronize)
        once_us = float(np.median([block_us(side, 5, synchronize) for _ in range(5)]))
        calls.append(max(1, round(BLOCK_S * 1e6 / once_us)))
        leads.append(max(1, round(LEAD_S * 1e6 / once_us)))
    order = random.Random(seed)
    times: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.freeze()
    gc.disable()
    yardstick, yard_us, calm = make_yardstick(device), [], 0
    limit = calm_limit(torch.get_num_threads())
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for turn in range(WARM_ROUNDS + MOST * rounds):
        before_us, here = yardstick(), [0.0, 0.0]
        for index in order.sample((0, 1), 2):
            here[index] = block_us(
                sides[index], calls[index], synchronize, leads[index]
            )
        if turn < WARM_ROUNDS:
            continue
        for kept, us in zip(times, here, strict=True):
            kept.append(float(f"{us:.4g}"))
        yard_us.append(float(f"{max(before_us, yardstick()):.4g}"))
        best_us = min(known_us, float(np.quantile(yard_us, 0.05)))
        calm += yard_us[-1] <= limit * best_us
        if calm >= rounds:
            break
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return {
        "first_call_s": round(first_s, 2),
        "page_faults": round(
            faults / (turn + 1) / sum(calls + leads), 1
        ),  # of a call, on average
        "threads": torch.get_num_threads(),
        "calls": calls,
        "leads": leads,
        "eager_us": times[0],
        "compiled_us": times[1],
        "yard_us": yard_us,
        "known_us": min(known_us, float(np.quantile(yard_us, 0.05))),
    }


def measure_all(
    names: list[str],
    device: str,
    processes: int,
    rounds: int,
    folder: Path,
    wait: bool = True,
    only: list[str] | None = None,
) -> None:
    """Every missing process, in random order, model by model; of ``only`` these settings.

    Without ``wait`` nobody waits for a calm host, and a process counts however calm it was.
    """
    for name in names:
        path, order = folder / f"truth_{name}.json", random.Random(name)
        settings, wanted = list(MODELS[name].settings[device]), (processes, rounds)
        settings = [setting for setting in settings if only is None or setting in only]
        if not wait:
            wanted = (processes, 0)
        while missing := _missing(load(path), settings, *wanted):
            setting, process = order.choice(missing), len(load(path))
            if wait:
                wait_for_calm(best_yard_us(load(path)), device)
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="truth-") as cache:
                places = {
                    "TORCHINDUCTOR_CACHE_DIR": cache,
                    "TRITON_CACHE_DIR": f"{cache}/triton",
                }
                command = [
                    sys.executable,
                    __file__,
                    "--one",
                    name,
                    setting,
                    str(process),
                ]
                command += ["--device", device, "--rounds", str(rounds)]
                command += ["--known-us", str(best_yard_us(load(path)))]
                found = last_line(command, {**places, **MODELS[name].environment}, 1200)
            append(path, device, {"setting": setting, "process": process, **found})
            said = found.get("error")
            if said is None:
                calm = calm_ratios(found, best_yard_us(load(path)))
                said = f"{np.median(calm):.3f}x" if calm.size else "no calm round"
                said += f" ({calm.size} of {len(found['yard_us'])} rounds)"
            print(
                f"{name} {setting} {process}: {said}, {time.monotonic() - began:.0f} s",
                flush=True,
            )


def _missing(
    rows: list[dict[str, Any]], settings: list[str], processes: int, rounds: int
) -> list[str]:
    """The settings of which fewer calm processes are there than wanted, and tries are left."""
    calm = Counter(r["setting"] for r in rows if is_calm(r, best_yard_us(rows), rounds))
    tries = Counter(r["setting"] for r in rows)
    failed = Counter(r["setting"] for r in rows if "error" in r)
    return [
        s
        for s in settings
        if calm[s] < processes and tries[s] < TRIES * processes and failed[s] < TRIES
    ]


def is_calm(row: dict[str, Any], yard_us: float, rounds: int) -> bool:
    return "error" not in row and calm_ratios(row, yard_us).size >= ENOUGH * rounds


def calm_limit(threads: int) -> float:
    """How far the yardstick may be above its best, as a factor."""
    return CALM_OF_MANY if threads > MANY else CALM


def wait_for_calm(known_us: float, device: str) -> None:
    """Until the yardstick is what it was at best, twice in a row; not for ever."""
    import torch

    yardstick, until, calm = make_yardstick(device), time.monotonic() + WAIT_S, 0
    limit_us = calm_limit(torch.get_num_threads()) * known_us
    while calm < 2 and time.monotonic() < until:
        calm = calm + 1 if yardstick() <= limit_us else 0
        time.sleep(0.5)


def best_yard_us(rows: list[dict[str, Any]]) -> float:
    """What the yardstick takes where nothing disturbs it."""
    return min((row["known_us"] for row in rows if "error" not in row), default=1e9)


def calm_ratios(row: dict[str, Any], yard_us: float) -> np.ndarray:
    """Eager time over compiled time, round by round, of the calm ones."""
    every = np.asarray(row["eager_us"]) / np.asarray(row["compiled_us"])
    return every[np.asarray(row["yard_us"]) <= calm_limit(row["threads"]) * yard_us]


@dataclass(frozen=True)
class Truth:
    """One setting: its speed-up with a 95 % interval, and the median of each process."""

    value: float
    low: float
    high: float
    processes: tuple[float, ...]


def analyse(
    rows: list[dict[str, Any]], rounds: int | None = None, *, calm_only: bool = True
) -> dict[str, Truth]:
    """For each setting, the median of the calm rounds' ratios, pooled over its calm processes.

    The interval is a bootstrap over processes and, within each, over rounds. Eager is 1 exactly.
    Where ``calm_only`` is false all rounds of all processes count, and the yardstick does not.
    """
    found = {EAGER: Truth(1.0, 1.0, 1.0, ())}
    rounds = rounds or (
        ROUNDS if any("leads" in row for row in rows) else EARLIER_ROUNDS
    )
    yard_us = best_yard_us(rows) if calm_only else float("inf")
    calm = [row for row in rows if is_calm(row, yard_us, rounds if calm_only else 0)]
    for setting in dict.fromkeys(row["setting"] for row in calm):
        # As many rounds of each: a process that had more is no better informed.
        ours = [
            calm_ratios(r, yard_us)[:rounds] for r in calm if r["setting"] == setting
        ]
        draw = np.random.default_rng(0)
        again = [
            np.median(
                np.concatenate([draw.choice(ours[i], ours[i].size) for i in picked])
            )
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
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--folder", type=Path, help="for the JSON; beside this file if left out"
    )
    parser.add_argument("--settings", help="comma list; all of the model if left out")
    parser.add_argument(
        "--anyway", action="store_true", help="do not wait for a calm host"
    )
    parser.add_argument("--known-us", type=float, default=1e9, help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, setting, process = args.one
        row = measure(
            name, setting, args.device, args.rounds, int(process), args.known_us
        )
        print(json.dumps(row), flush=True)
        return
    names = args.models.split(",") if args.models else of_device(args.device)
    folder = args.folder or HERE / args.device
    wait = not folder.name.startswith(BUSY) and not args.anyway
    only = args.settings.split(",") if args.settings else None
    measure_all(names, args.device, args.processes, args.rounds, folder, wait, only)
    for name in names:
        truth = analyse(load(folder / f"truth_{name}.json"), args.rounds)
        for setting, t in truth.items():
            tied = "tied for best" if setting in ties(truth) else ""
            print(
                f"{name:5} {setting:28} {t.value:.3f} [{t.low:.3f}, {t.high:.3f}] {tied}"
            )
        for setting in set(MODELS[name].settings[args.device]) - set(truth):
            print(f"{name:5} {setting:28} no process was calm")


if __name__ == "__main__":
    main()
