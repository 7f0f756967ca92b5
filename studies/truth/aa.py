"""How often autocompile calls equals different, and how often it sees a slow-down of 2 %.

    python studies/truth/aa.py --show             # what is recorded; measures nothing
    python studies/truth/aa.py --to aa.json       # about ten minutes on two cores

Each experiment is a race as the product runs it, of sides that are known: eager mode, a copy of it,
the same code twice, and that code made 2 % slower (``twins.py``). Six sets of fresh processes are
measured, and ``autocompile.estimate`` decides on them by its own rule, stopping where a race would;
each side takes the part of the baseline in turn. CPU only. What is there is not measured again;
``aa.json`` holds every block.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from store import append, commit, load

from autocompile.estimate.decision import SETS, decide_all
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

HERE = Path(__file__).parent
BATCH_SIZE = 4
SIDES = {
    "eager again": EAGER,
    "same": CompileConfig("same"),
    "same again": CompileConfig("same"),
    "slower": CompileConfig("slower"),
}
SLOWER = 0.02  # as in twins.py
EQUALS = (("eager", "eager again"), ("same", "same again"))


# --- measuring -----------------------------------------------------------------------------------


def ended(executor: LocalExecutor, job: Job) -> Ending:
    """One job, with nothing beside it."""
    executor.start(job)
    while True:
        for event in executor.wait(0.5):
            if isinstance(event, Ended) and event.number == job.number:
                return event.ending


def microseconds(seconds: list[float]) -> list[float]:
    return [float(f"{1e6 * s:.5g}") for s in seconds]


def measured(executor: LocalExecutor, job_factory: JobFactory) -> dict[str, Any]:
    """One set: raw microseconds of a call, by side, in the order of the rounds."""
    request = TrialRequest(
        header=job_factory.header,
        number=job_factory.next_number(),
        phase="forward",
        sides=tuple(
            Side(config, number, str(job_factory.cache_of(number)), checks=Checks.FIRST)
            for number, config in enumerate(SIDES.values())
        ),
        batch_size=BATCH_SIZE,
        limits=racing.LIMITS,
    )
    ending = ended(executor, job_factory.job(request, alone=True))
    found = {side["number"]: side for side in ending.payload.get("sides", ())}
    failed = [side.get("message") for side in found.values() if side["outcome"] != "ok"]
    if ending.outcome is not Outcome.OK or failed:
        raise SystemExit(f"{ending.outcome.value}: {ending.message} {failed}")
    eager_us = microseconds(found[0]["measurement"]["eager_s"])
    times_us = {
        label: microseconds(found[number]["measurement"]["compiled_s"])
        for number, label in enumerate(SIDES)
    }
    return {
        "reference_us": round(1e6 * found[0]["reference_s"], 1),
        "times_us": {"eager": eager_us, **times_us},
    }


def measure(path: Path, count: int) -> None:
    """Every set that is missing in the file."""
    there = {(row["experiment"], row["set"]) for row in load(path)}
    with tempfile.TemporaryDirectory(prefix="truth-") as scratch:
        folder = RunFolder(scratch)
        folder.create()
        header = Header(str(HERE / "twins.py"), "cpu")
        job_factory = JobFactory(folder, header, 200.0, None)
        executor = LocalExecutor(jobs=1)
        try:
            for experiment in range(count):
                for number in range(SETS[1]):
                    if (experiment, number) in there:
                        continue
                    row = {"experiment": experiment, "set": number, "commit": commit()}
                    append(path, "cpu", row | measured(executor, job_factory))
                    print(f"experiment {experiment}, set {number}", flush=True)
        finally:
            executor.close()


# --- what the decision makes of it ---------------------------------------------------------------


def records(sets: list[dict[str, Any]], baseline: str, other: str) -> list[Record]:
    """What a run would hold in which ``baseline`` was eager, and ``other`` a setting."""
    found = []
    for number, config, side in ((0, EAGER, baseline), (1, DEFAULT_INDUCTOR, other)):
        for index, one in enumerate(sets):
            eager_s, compiled_s = (
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
                measurement=Measurement(eager_s, compiled_s),
                compile_s=None if config.is_eager else 1.0,
                reference_s=1e-6 * one["reference_us"],
                raced_in=index,
            )
            if index == 0:
                found.append(trial)  # its trial of the search
            raced = dataclasses.replace(
                trial,
                number=10 * (index + 1) + number,
                role="confirm",
                repeats=number,
                race=index + 1,
            )
            found.append(raced)
    return found


def is_called_faster(sets: list[dict[str, Any]], baseline: str, other: str) -> bool:
    """What is decided where a race would stop."""
    for count in range(SETS[0], SETS[1] + 1):
        decision = decide_all(records(sets[:count], baseline, other))[BATCH_SIZE]
        if not decision.open:
            break
    return decision.is_faster


def scaled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with ``slower``'s times scaled so that it is just that much slower on average.

    The wait of ``twins.py`` costs more than its length: it came out as 3.4 and 3.7 %, not 2.
    """
    logs = [
        median(map(math.log, map(float.__truediv__, times["slower"], times["same"])))
        for times in (row["times_us"] for row in rows)
    ]
    by = (1 + SLOWER) / math.exp(fmean(logs))
    found = []
    for row in rows:
        slower = [by * us for us in row["times_us"]["slower"]]
        found.append({**row, "times_us": {**row["times_us"], "slower": slower}})
    return found


def analyse(rows: list[dict[str, Any]]) -> tuple[list[bool], list[bool]]:
    """Of equals, whether one was called faster; and whether code was that is 2 % faster."""
    experiments: dict[int, list[dict[str, Any]]] = {}
    for row in scaled(rows):
        experiments.setdefault(row["experiment"], []).append(row)
    whole = [sets for sets in experiments.values() if len(sets) == SETS[1]]
    of_equals = [
        is_called_faster(sets, *pair)
        for sets in whole
        for equals in EQUALS
        for pair in (equals, equals[::-1])
    ]
    of_slower = [
        is_called_faster(sets, "slower", other) for sets in whole for other in EQUALS[1]
    ]
    return of_equals, of_slower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=14, help="of experiments")
    parser.add_argument("--to", type=Path, default=HERE / "aa.json")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.show:
        measure(options.to, options.count)
    equals, slower = analyse(load(options.to))
    print(f"equals of which one was called faster: {sum(equals)} of {len(equals)}")
    print(f"called faster than what is 2 % slower: {sum(slower)} of {len(slower)}")


if __name__ == "__main__":
    main()
