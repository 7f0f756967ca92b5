"""How often autocompile tells equals apart, and how often it sees a slow-down of 2 %.

    python studies/truth/aa.py                                # about half an hour on two cores
    python studies/truth/aa.py --processes 5 --pairs 1 --folder smoke

Everything is timed by the product's own code, judged by its own rules, on a model of the study
(``--model``; the CNN). Each fresh process times eager against eager for the noise floor, then

- A/A: the same against itself, with the limits of the search; every other pair is compiled;
- power: compiled against itself with 2 % more work, with the limits of the search and with those
  of the confirmation. The extra work spins for 2 % of what the call before it took.

The final decision joins five processes, as a confirmation does. CPU only. What is there already
is not measured again; ``aa.json`` holds every interval.

These compare two sides of one process. Two settings of a tune are compared by processes of their
own, which differ; so :func:`groups` takes processes of one setting from the recorded truth and asks
whether four of them would be told from five others.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autocompile.preference import SAME
from ground_truth import ROUNDS, best_yard_us, calm_limit, is_calm
from models import HERE, MODELS, Side, make
from store import append, last_line, load

from autocompile import api
from autocompile.estimate.intervals import Interval, across_processes, median, ratio, speedup
from autocompile.search import finalists
from autocompile.search.effort import EFFORTS

SLOWER = 0.02
JOINED = 5  # processes behind a final decision
EFFORT = EFFORTS["normal"]
SEARCH = {
    "half_width": EFFORT.half_width,
    "max_s": EFFORT.max_s,
    "max_rounds": api._MAX_ROUNDS,
    "block_s": api._SEARCH_BLOCK_S,
    "patience": api._SEARCH_PATIENCE,
}
CONFIRM = {
    **SEARCH,
    "half_width": EFFORT.confirm_half_width,
    "block_s": finalists._BLOCK_S,
    "patience": finalists._PATIENCE,
}


def slowed(call: Callable[[], Any], share: float) -> Callable[[], None]:
    """The same call, and then nothing for a share of the time that it took."""
    clock = time.perf_counter_ns

    def slow() -> None:
        begin = clock()
        call()
        now = clock()
        end = now + share * (now - begin)
        while clock() < end:
            pass

    return slow


def measure(model: str, pairs: int, process: int) -> dict[str, Any]:
    """In a process of its own: the floor, then pairs of each kind in random order."""
    import torch
    from autocompile.trial.pace import Pace
    from autocompile.trial.strain import Strain

    from autocompile.trial.measure import Limits, Timed, paired_blocks

    cpu = torch.device("cpu")
    pace = Pace(cpu)

    def against(first: Callable[[], Any], second: Side, limits: dict[str, Any], seed: int) -> Any:
        sides = [Timed(c, lambda: None, second.context) for c in (first, second.call)]
        strain = Strain(cpu, pace)
        found = paired_blocks(*sides, lambda: None, Limits(**limits), seed, strain)
        interval = found.speedup
        value = [round(v, 5) for v in (interval.value, interval.low, interval.high)]
        return {"interval": value, "rounds": len(found.eager_s), "flags": found.flags}

    settings = MODELS[model].settings["cpu"]["default"]
    eager, other, compiled = (make(model, "cpu", kw) for kw in (None, None, settings))
    with compiled.context():
        for side in (eager, other, compiled):
            side.call()
    seeds = random.Random(process)

    def one(kind: str, index: int) -> dict[str, Any]:
        seed = seeds.randrange(2**31)
        if kind == "floor":
            return against(eager.call, other, CONFIRM, seed)
        if kind == "aa":
            first, second = (compiled, compiled) if index % 2 else (eager, other)
            return against(first.call, second, SEARCH, seed)
        limits = SEARCH if kind == "power" else CONFIRM
        return against(slowed(compiled.call, SLOWER), compiled, limits, seed)

    jobs = [(kind, i) for kind in ("aa", "power", "power_confirm") for i in range(pairs)]
    seeds.shuffle(jobs)
    found: dict[str, list[Any]] = {"floor": [one("floor", 0)]}
    for kind, index in jobs:
        found.setdefault(kind, []).append({"pair": index, **one(kind, index)})
    return found


def floor_of(interval: Interval) -> float:
    """The noise floor that an A/A interval gives, as autocompile/ranking.py has it."""
    return max(interval.high - 1, 1 - interval.low)


def beats(interval: Interval, floor: float) -> bool:
    """Whether the report would call the second side faster (report/build.py)."""
    return interval.low > 1 and interval.value > 1 + floor


def differs(interval: Interval, floor: float) -> bool:
    """Whether either side would be called faster."""
    return beats(interval, floor) or beats(ratio(Interval(1, 1, 1), interval), floor)


def behind(interval: Interval) -> bool:
    """Whether a setting so far behind another leaves its tie set (ranking.py)."""
    return interval.low > 1 + SAME


def analyse(rows: list[dict[str, Any]]) -> dict[str, list[bool]]:
    """Every decision by name: whether the two sides were called different."""
    found: dict[str, list[bool]] = {
        name: []
        for name in ("aa", "aa_interval", "aa_tie", "power", "power_final", "power_final_tie")
    }
    rows = [row for row in rows if "error" not in row]

    def intervals(row: dict[str, Any], kind: str) -> list[Interval]:
        return [Interval(*p["interval"]) for p in sorted(row[kind], key=lambda p: p.get("pair", 0))]

    for row in rows:
        floor = floor_of(intervals(row, "floor")[0])
        for i in intervals(row, "aa"):
            found["aa"].append(differs(i, floor))
            found["aa_interval"].append(not i.low <= 1 <= i.high)
            found["aa_tie"].append(behind(i) or behind(ratio(Interval(1, 1, 1), i)))
        found["power"] += [beats(i, floor) for i in intervals(row, "power")]
    for begin in range(0, len(rows) - JOINED + 1, JOINED):
        group = rows[begin : begin + JOINED]
        floors = [intervals(row, "floor")[0] for row in group]
        floor, equal = median([floor_of(i) for i in floors]), across_processes(floors)
        for several in zip(*(intervals(row, "power_confirm") for row in group), strict=False):
            joined = across_processes(several)
            found["power_final"].append(beats(joined, floor))
            found["power_final_tie"].append(behind(ratio(joined, equal)))
    return found


def groups(rows: list[dict[str, Any]]) -> list[bool]:
    """Whether four processes of a setting would leave the tie set of five others, or they theirs.

    Args:
        rows: of ``truth_<model>.json``; each setting's first nine calm processes are parted in all
            126 ways, which have processes in common: they are not so many independent tries.
    """
    yard_us = best_yard_us(rows)
    found: list[bool] = []
    for setting in dict.fromkeys(row["setting"] for row in rows if "error" not in row):
        each = []
        for row in rows:
            if row["setting"] != setting or not is_calm(row, yard_us, ROUNDS):
                continue
            most_us = calm_limit(row["threads"]) * yard_us
            calm = [i for i, us in enumerate(row["yard_us"]) if us <= most_us][:ROUNDS]
            sides = row["eager_us"], row["compiled_us"]
            each.append(speedup(*([side[i] for i in calm] for side in sides)))
        for four in itertools.combinations(range(len(each[:9])), 4):
            parts = (
                [i for n, i in enumerate(each[:9]) if n in four],
                [i for n, i in enumerate(each[:9]) if n not in four],
            )
            apart = ratio(*map(across_processes, parts))
            found.append(behind(apart) or behind(ratio(Interval(1, 1, 1), apart)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=20, help="a multiple of five")
    parser.add_argument("--first", type=int, default=0, help="process; without those before it")
    parser.add_argument("--pairs", type=int, default=5, help="of each kind in each process")
    parser.add_argument("--model", choices=("mlp", "cnn", "ppo"), default="cnn")
    parser.add_argument("--folder", type=Path, help="for the JSON; beside this file if left out")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(args.model, args.pairs, args.one)), flush=True)
        return
    path = (args.folder or HERE / "cpu") / "aa.json"
    there = {row["process"] for row in load(path) if row["model"] == args.model}
    for process in sorted({*range(args.first, args.processes)} - there):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="truth-") as cache:
            command = [sys.executable, __file__, "--one", str(process), "--model", args.model]
            command += ["--pairs", str(args.pairs)]
            found = last_line(command, {"TORCHINDUCTOR_CACHE_DIR": cache}, 600)
        append(path, "cpu", {"model": args.model, "process": process, **found})
        said = found.get("error", "done")
        print(f"process {process}: {said}, {time.monotonic() - began:.0f} s", flush=True)
    with contextlib.suppress(ZeroDivisionError):
        for name, said in analyse([r for r in load(path) if r["model"] == args.model]).items():
            print(f"{name:16} {sum(said)} of {len(said)}: {sum(said) / len(said):.0%}")


if __name__ == "__main__":
    main()
