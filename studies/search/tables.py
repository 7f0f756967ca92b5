"""Measure complete tables: every setting of a model at a batch size, in several fresh processes.

Of each setting first one cold trial, as a search makes it: seconds of each step, outcome, raw
blocks. Then sets of fresh processes in which all settings that work take turns block by block with
eager mode (those that set something for the whole process, in one of their own). One JSON file for
each model; what is there is not measured again.

With ``--jobs`` more than one, processes compile side by side and stand still while one is verified
or timed, as in a search; seconds are without the pauses. The next table begins where there is room.
What took part is written to a file ``.part`` before the first set.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "studies/search")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    (str(ROOT), os.environ.get("PYTHONPATH", ""))
)

from models import MODELS, Model, settings  # noqa: E402

from autocompile.execute.executor import Ended, Ending, Job  # noqa: E402
from autocompile.execute.job import JobFactory  # noqa: E402
from autocompile.execute.local import LocalExecutor  # noqa: E402
from autocompile.protocol.requests import (  # noqa: E402
    Header,
    ProbeRequest,
    Side,
    TimingLimits,
    TrialRequest,
)
from autocompile.search.records import of_only_side, to_record  # noqa: E402
from autocompile.settings.config import (  # noqa: E402
    EAGER,
    CompileConfig,
    Setting,
)
from autocompile.store.record import Checks, RunFolder  # noqa: E402

SETS, ROUNDS, SET_S = 3, 12, 20.0
TIMEOUT_S = 200.0
AT_ONCE = 2  # tables: one that compiles beside one that is timed


Steps = Generator[list[Job], Mapping[int, Ending], None]


def work_off(tables: deque[Steps], jobs: int, until: float) -> None:
    """Run tables, ``jobs`` processes at once; those that have begun go first.

    Args:
        tables: each gives the jobs that it needs next and is sent their endings by number.
        jobs: how many at once.
        until: by ``time.monotonic``: no table begins later.
    """
    executor = LocalExecutor(jobs=jobs)
    begun: list[_Begun] = []
    try:
        while True:
            for one in begun:
                one.go_on()
            begun = [one for one in begun if not one.is_over]
            running = sum(len(one.running) for one in begun)
            for one in begun:
                while one.waiting and running < executor.slots:
                    executor.start(one.start_next())
                    running += 1
            has_room = running < executor.slots and len(begun) < AT_ONCE
            if has_room and tables and time.monotonic() < until:
                begun.append(_Begun(tables.popleft()))
                continue
            if not begun:
                return
            for event in executor.wait(0.5):
                if isinstance(event, Ended):
                    for one in begun:
                        one.ended(event.number, event.ending)
    finally:
        executor.close()


class _Begun:
    """A table that is being measured."""

    def __init__(self, steps: Steps) -> None:
        self._steps, self._endings = steps, dict[int, Ending]()
        first = next(steps, None)
        self.waiting, self.running = deque(first or ()), set[int]()
        self.is_over = first is None

    def start_next(self) -> Job:
        """The job that is to be started now."""
        job = self.waiting.popleft()
        self.running.add(job.number)
        return job

    def ended(self, number: int, ending: Ending) -> None:
        """A job of this table or another's."""
        if number in self.running:
            self.running.remove(number)
            self._endings[number] = ending

    def go_on(self) -> None:
        """The next jobs, if none of the last is open."""
        if self.waiting or self.running or self.is_over:
            return
        endings, self._endings = self._endings, {}
        try:
            self.waiting = deque(self._steps.send(endings))
        except StopIteration:
            self.is_over = True


def cold_job(
    job_factory: JobFactory, model: Model, size: int | None, config: CompileConfig
) -> Job:
    """A trial of the search."""
    request = TrialRequest(
        header=job_factory.header,
        number=job_factory.next_number(),
        phase=model.phase,
        sides=(Side(config),),
        batch_size=size,
        calls_per_update=model.calls_per_update,
    )
    return job_factory.job(request, alone=True)


def cold_row(
    model: Model, size: int | None, config: CompileConfig, ending: Ending
) -> dict[str, Any]:
    """What is kept of it."""
    said = of_only_side(ending.payload)
    setting = Setting(config, size, model.phase)
    record = to_record(-1, setting, dataclasses.replace(ending, payload=said))
    return {
        "config": config.to_dict(),
        "batch_size": size,
        "outcome": ending.outcome.value,
        "step": ending.step.value,
        "message": ending.message[:200],
        "seconds": round(ending.wall_s, 2),
        "wall_s": round(ending.wall_s + sum(b - a for a, b in ending.pauses), 2),
        "step_s": {k: round(v, 2) for k, v in ending.step_s.items()},
        "compile_s": record.compile_s,
        "refresh_s": said.get("refresh_s"),
        "code": said.get("code", ""),
        "searched": rounded(said.get("measurement")),
        "sets": [],
    }


def rounded(measurement: dict[str, Any] | None) -> dict[str, Any] | None:
    """Raw block times in microseconds."""
    if not measurement:
        return None
    return {
        k: [round(1e6 * t, 2) for t in measurement[k]]
        for k in ("eager_s", "compiled_s")
    }


def race_jobs(
    job_factory: JobFactory,
    model: Model,
    size: int | None,
    rows: dict[int, dict[str, Any]],
    number: int,
    rounds: int,
) -> list[Job]:
    """One set."""
    order = [n for n, row in rows.items() if row["outcome"] == "ok"]
    random.Random(number).shuffle(order)
    alone = [n for n in order if rows[n]["config"]["threads"] is not None]
    groups = [[n for n in order if n not in alone], *([n] for n in alone)]
    jobs = []
    for group in (g for g in groups if g):
        sides = [
            Side(
                CompileConfig.from_dict(rows[n]["config"]),
                n,
                str(job_factory.cache_of(n)),
                True,
                Checks.FIRST,
            )
            for n in group
        ]
        request = TrialRequest(
            header=job_factory.header,
            number=job_factory.next_number(),
            phase=model.phase,
            sides=tuple(sides),
            batch_size=size,
            limits=TimingLimits.exactly(rounds, SET_S),
        )
        jobs.append(job_factory.job(request, alone=True))
    return jobs


def add_set(rows: dict[int, dict[str, Any]], number: int, ending: Ending) -> None:
    """The raw blocks of each row that took part."""
    sides = [side for side in ending.payload.get("sides", ()) if "number" in side]
    for side in sides:
        rows[side["number"]]["sets"].append(
            {
                "set": number,
                "outcome": side.get("outcome", ending.outcome.value),
                "message": side.get("message", "")[:200],
                "reference_us": round(1e6 * (side.get("reference_s") or 0.0), 1),
                # Where it was held meanwhile, nobody knows how long a compile took.
                "warm_compile_s": None if ending.pauses else side.get("compile_s"),
                **(rounded(side.get("measurement")) or {}),
            }
        )
    told = f"{ending.outcome.value} {ending.message}".rstrip()
    steps = {name: round(s) for name, s in ending.step_s.items()}
    print(
        f"  set {number}: {len(sides)} settings, {ending.wall_s:.0f} s {steps}, {told}"
    )


def log_speedup(row: dict[str, Any]) -> float | None:
    """The median over sets of the median ratio of a set's rounds, as a logarithm."""
    logs = [
        median(
            math.log(e / c) for e, c in zip(s["eager_s"], s["compiled_s"], strict=True)
        )
        for s in row["sets"]
        if s.get("eager_s")
    ]
    return median(logs) if logs else None


def table(
    model: Model, size: int | None, path: Path, options: argparse.Namespace, first: int
) -> Steps:
    """Measure a model at a batch size, unless it is there; ``first`` is the number of a job."""
    device = options.device
    data: dict[str, Any] = {"rows": []}
    if path.exists():
        data = json.loads(path.read_text())
    if any(row["batch_size"] == size for row in data["rows"]):
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autocompile-table-") as scratch:
        folder = RunFolder(Path(scratch))
        folder.create()
        header = Header(str(ROOT / model.target), device)
        job_factory = JobFactory(folder, header, TIMEOUT_S, None, _next=first + 1)
        request = ProbeRequest(
            header=header, phases=(model.phase,), batch_size=size or 4
        )
        probe = dataclasses.replace(job_factory.probe_job(request, True), number=first)
        seen = (yield [probe])[first]
        if "environment" not in seen.payload:
            print(f"{model.name}: {seen.outcome.value} {seen.message}")
            return
        configs = [
            c
            for c in settings(model, device)
            if not left_out(model, c, options.without)
        ]
        cold = [cold_job(job_factory, model, size, config) for config in configs]
        endings = yield cold
        rows = {}
        for order, (config, job) in enumerate(zip(configs, cold, strict=True)):
            row = {"order": order, **cold_row(model, size, config, endings[job.number])}
            rows[job.number] = row
            print(
                f"  {model.name:10} {row['outcome']:14} {row['seconds']:6.1f} s  {config.label()}"
                f"  {row['message'][:90]}"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(list(rows.values()), separators=(",", ":")) + "\n")
        sets = [
            race_jobs(job_factory, model, size, rows, number, options.rounds)
            for number in range(SETS)
        ]
        endings = yield [job for each in sets for job in each]
        for number, each in enumerate(sets):
            for job in each:
                add_set(rows, number, endings[job.number])
    for row in rows.values():
        row["log_speedup"] = log_speedup(row)
        failed = [s["outcome"] for s in row["sets"] if s["outcome"] != "ok"]
        if row["outcome"] == "ok" and failed:
            row["outcome"] = failed[0]
    layers = "conv" if model.layers == "conv" else "other"
    kind = "forward" if model.phase.startswith("forward") else model.phase
    if path.exists():  # another batch size may have come meanwhile
        data = json.loads(path.read_text())
    data |= {
        "schema": 1,
        "model": model.name,
        "phase": model.phase,
        "layers": model.layers,
        "kind": f"{device}/{kind}/{layers}"
        if kind == "forward"
        else f"{device}/{kind}",
        "calls_per_update": model.calls_per_update,
        "machine": {**seen.payload["environment"], "host": platform.machine()},
        "eager": EAGER.to_dict(),
    }
    if options.jobs > 1:
        data["jobs"] = options.jobs
    if options.without:
        data["without"] = options.without
    data["rows"] += list(rows.values())
    data.setdefault("wall_s", {})[str(size)] = round(time.monotonic() - began, 1)
    path.write_text(json.dumps(data, indent=None, separators=(",", ":")) + "\n")
    part.unlink()
    print(f"{model.name} batch {size}: {time.monotonic() - began:.0f} s")


def left_out(model: Model, config: CompileConfig, without: str) -> bool:
    """Whether a setting is not measured: ``words`` of its label, or ``model:words``."""
    label = config.label()
    for each in filter(None, without.split(",")):
        name, colon, words = each.rpartition(":")
        if words in label and (not colon or name == model.name):
            return True
    return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="names, with commas; all if left out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--sizes", type=int, default=9, help="at most so many batch sizes of each"
    )
    parser.add_argument(
        "--until", type=float, default=math.inf, help="begin no table after seconds"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each set")
    parser.add_argument(
        "--without", default="", help="words of labels, with commas; model:words"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--to", type=Path, default=None, help="folder")
    options = parser.parse_args()
    started = time.monotonic()
    to = options.to or ROOT / "studies/search" / options.device / "tables"
    names = options.model.split(",") if options.model else list(MODELS)
    tables = deque[Steps]()
    for name in names:
        model = MODELS[name]
        sizes = list(model.batch_sizes)
        middle = sizes[len(sizes) // 2]
        order = [middle, *(s for s in sizes if s != middle)][: options.sizes]
        for one in order:
            path, first = to / f"{name}.json", 1000 * len(tables)
            tables.append(table(model, one, path, options, first))
    work_off(tables, options.jobs, started + options.until)
