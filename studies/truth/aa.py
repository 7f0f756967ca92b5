"""How often autocompile calls equals different, and how often it sees a slow-down of 2 %.

    python studies/truth/aa.py                    # about ten minutes on two cores
    python studies/truth/aa.py --count 1 --folder smoke

Each experiment is a race as the product runs it, of sides that are known: eager mode, a copy of it,
the same code twice, and that code made 2 % slower (``twins.py``). Six sets of fresh processes are
measured, and ``autocompile.estimate`` decides on them by its own rule, stopping where a race would;
each side takes the part of the baseline in turn. CPU only. What is there is not measured again;
``aa.json`` holds every block.

Sides of a race share a process; so :func:`groups` takes processes of one setting from the recorded
truth and asks whether three of them would be told from three others.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ground_truth import best_yard_us, calm_limit
from models import HERE
from store import append, commit, load
from twins import SLOWER

from autocompile.estimate.decision import SAME, SETS, ZONE, Decision, decide_all
from autocompile.estimate.intervals import median_interval, over_sets, ratio
from autocompile.execute.executor import Ended, Ending, Job
from autocompile.execute.job import JobFactory
from autocompile.execute.local import LocalExecutor
from autocompile.protocol.requests import Header, Side, TrialRequest
from autocompile.search import race as racing
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.store.record import (
    Checks,
    Measurement,
    Outcome,
    Record,
    RunFolder,
    Step,
)

BATCH_SIZE = 4
SIDES = {
    "eager again": EAGER,
    "same": CompileConfig("same"),
    "same again": CompileConfig("same"),
    "slower": CompileConfig("slower"),
}
OTHER = DEFAULT_INDUCTOR  # what a side is called that is compared with one called eager


def run(executor: LocalExecutor, job: Job) -> Ending:
    """One job, with nothing beside it."""
    executor.start(job)
    while True:
        for event in executor.wait(0.5):
            if isinstance(event, Ended) and event.number == job.number:
                return event.ending


def microseconds(seconds: list[float]) -> list[float]:
    return [float(f"{1e6 * s:.5g}") for s in seconds]


def measure(
    executor: LocalExecutor, job_factory: JobFactory, name: str
) -> dict[str, Any]:
    """One set: raw microseconds of a call, by side, in the order of the rounds."""
    sides = [
        Side(config, number, str(job_factory.cache_of(number)), checks=Checks.FIRST)
        for number, config in enumerate(SIDES.values())
    ]
    request = TrialRequest(
        header=job_factory.header,
        number=job_factory.next_number(),
        phase="forward",
        sides=tuple(sides),
        batch_size=BATCH_SIZE,
        limits=racing.LIMITS,
    )
    ending = run(executor, job_factory.job(request, alone=True))
    found = {side["number"]: side for side in ending.payload.get("sides", ())}
    failed = [
        f"{n}: {s.get('message', '')}" for n, s in found.items() if s["outcome"] != "ok"
    ]
    if ending.outcome is not Outcome.OK or failed:
        return {
            "error": f"{name}: {ending.outcome.value} {ending.message} {failed}"[:300]
        }
    times = {
        label: microseconds(found[n]["measurement"]["compiled_s"])
        for n, label in enumerate(SIDES)
    }
    eager = microseconds(found[0]["measurement"]["eager_s"])
    reference_us = round(1e6 * found[0]["reference_s"], 1)
    return {"reference_us": reference_us, "times_us": {"eager": eager, **times}}


def records(sets: list[dict[str, Any]], baseline: str, other: str) -> list[Record]:
    """What a run would hold in which ``baseline`` was eager, and ``other`` a setting."""
    found = []
    for number, config, side in ((0, EAGER, baseline), (1, OTHER, other)):
        for index, one in enumerate(sets):
            times = (
                tuple(1e-6 * us for us in one["times_us"][name])
                for name in (baseline, side)
            )
            trial = Record(
                number,
                "forward",
                config,
                BATCH_SIZE,
                outcome=Outcome.OK,
                step=Step.EXIT,
                measurement=Measurement(*times),
                compile_s=None if config.is_eager else 1.0,
                reference_s=1e-6 * one["reference_us"],
                raced_in=index,
            )
            if index == 0:
                found.append(trial)  # its trial of the search
            found.append(_raced(trial, index + 1))
    return found


def _raced(trial: Record, number: int) -> Record:
    return dataclasses.replace(
        trial,
        number=10 * number + trial.number,
        role="confirm",
        repeats=trial.number,
        race=number,
    )


def decided(
    sets: list[dict[str, Any]], baseline: str, other: str
) -> tuple[Decision, int]:
    """The decision where a race would stop, and after how many sets that is."""
    for count in range(SETS[0], SETS[1] + 1):
        decision = decide_all(records(sets[:count], baseline, other))[BATCH_SIZE]
        if not decision.open:
            break
    return decision, count


def scaled(rows: list[dict[str, Any]], slower: float = SLOWER) -> list[dict[str, Any]]:
    """The rows with ``slower``'s times scaled so that it is just that much slower on average.

    The wait of ``twins.py`` costs more than its length: it came out as 3.4 and 3.7 %, not 2.
    """
    whole = [row for row in rows if "error" not in row]
    logs = [np.median(np.log(np.divide(t["slower"], t["same"]))) for t in _times(whole)]
    by = (1 + slower) / math.exp(np.mean(logs)) if logs else 1.0
    return [
        {**row, "times_us": {**t, "slower": [by * us for us in t["slower"]]}}
        for row, t in zip(whole, _times(whole), strict=True)
    ]


def _times(rows: list[dict[str, Any]]) -> list[dict[str, list[float]]]:
    return [row["times_us"] for row in rows]


def analyse(rows: list[dict[str, Any]]) -> dict[str, list[bool]]:
    """Every decision by name: whether the two sides were called different."""
    rows = scaled(rows)
    found: dict[str, list[bool]] = {
        name: [] for name in ("aa", "aa_interval", "power", "open")
    }
    experiments: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if "error" not in row:
            experiments.setdefault(row["experiment"], []).append(row)
    for sets in (s for s in experiments.values() if len(s) >= SETS[1]):
        for pair in (("eager", "eager again"), ("same", "same again")):
            for baseline, other in (pair, pair[::-1]):
                decision, _ = decided(sets, baseline, other)
                found["aa"].append(decision.is_faster)
                found["open"].append(bool(decision.open))
                over = _against_baseline(decision)
                found["aa_interval"].append(not over.low <= 1 <= over.high)
        for other in ("same", "same again"):
            decision, _ = decided(sets, "slower", other)
            found["power"].append(decision.is_faster)
    return found


def _against_baseline(decision: Decision) -> Any:
    every = (decision.best, *decision.rivals)
    return next(c for c in every if not c.record.config.is_baseline).speedup


def sets_used(rows: list[dict[str, Any]]) -> list[int]:
    """After how many sets each pair of equals was decided."""
    experiments: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if "error" not in row:
            experiments.setdefault(row["experiment"], []).append(row)
    whole = [sets for sets in experiments.values() if len(sets) >= SETS[1]]
    return [decided(sets, "same", "same again")[1] for sets in whole]


def groups(rows: list[dict[str, Any]]) -> dict[str, list[bool]]:
    """Three processes of a setting against three others: whether they would be called different.

    Args:
        rows: of ``truth_<model>.json``. The first nine calm processes of each setting are taken,
            and parted in all ways, which have processes in common: they are not so many
            independent tries.

    Returns:
        ``same``: not as good as one another; ``out``: one is out, slower by more than the zone;
        ``interval``: the interval of their ratio leaves out 1.
    """
    yard_us = best_yard_us(rows)
    found: dict[str, list[bool]] = {"same": [], "out": [], "interval": []}
    for logs in _logs(rows, yard_us):
        for six in itertools.combinations(range(len(logs)), 6):
            for three in itertools.combinations(six[1:], 2):  # each way once
                first = {six[0], *three}
                parts = (
                    [logs[i] for i in six if (i in first) is own]
                    for own in (True, False)
                )
                apart = ratio(*map(over_sets, parts))
                found["same"].append(not 1 / (1 + SAME) <= apart.value <= 1 + SAME)
                found["out"].append(apart.low > 1 + ZONE or apart.high < 1 / (1 + ZONE))
                found["interval"].append(not apart.low <= 1 <= apart.high)
    return found


def _logs(rows: list[dict[str, Any]], yard_us: float) -> Iterator[list[float]]:
    """By setting, the logarithm of the speed-up in each calm process, from a race's rounds."""
    rows = [row for row in rows if "error" not in row]
    for setting in dict.fromkeys(row["setting"] for row in rows):
        calm = [
            np.log(np.asarray(row["eager_us"]) / np.asarray(row["compiled_us"]))[
                : racing.LIMITS.rounds
            ]
            for row in rows
            if row["setting"] == setting
            and np.median(row["yard_us"]) <= calm_limit(row["threads"]) * yard_us
        ]
        yield [median_interval(logs).value for logs in calm[:9]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="of experiments")
    parser.add_argument(
        "--sets", type=int, default=SETS[1], help="of each; fewer are not judged"
    )
    parser.add_argument(
        "--folder", type=Path, help="for the JSON; beside this file if left out"
    )
    args = parser.parse_args()
    path = (args.folder or HERE / "host_3_in_turns") / "aa.json"
    there = {(row["experiment"], row["set"]) for row in load(path)}
    todo = [
        (e, s)
        for e in range(args.count)
        for s in range(args.sets)
        if (e, s) not in there
    ]
    with tempfile.TemporaryDirectory(prefix="truth-") as scratch:
        folder = RunFolder(scratch)
        folder.create()
        header = Header(str(HERE / "twins.py"), "cpu")
        job_factory = JobFactory(folder, header, 200.0, None)
        executor = LocalExecutor(jobs=1)
        try:
            for experiment, number in todo:
                began = time.monotonic()
                found = measure(executor, job_factory, f"{experiment} {number}")
                row = {
                    "experiment": experiment,
                    "set": number,
                    "commit": commit(),
                    **found,
                }
                append(path, "cpu", row)
                said = found.get("error", "done")
                took_s = time.monotonic() - began
                print(
                    f"experiment {experiment}, set {number}: {said}, {took_s:.0f} s",
                    flush=True,
                )
        finally:
            executor.close()
    for name, seen in analyse(load(path)).items():
        if seen:
            print(f"{name:12} {sum(seen)} of {len(seen)}: {sum(seen) / len(seen):.0%}")
    if used := sets_used(load(path)):
        print(f"sets         {np.mean(used):.1f}")


if __name__ == "__main__":
    main()
