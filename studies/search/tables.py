"""Measure complete tables: every setting of a model at a batch size, in several fresh processes.

Of each setting first one cold trial, as a search makes it: seconds of each step, outcome, raw
blocks. Then sets of fresh processes in which all settings that work take turns block by block with
eager mode (those that set something for the whole process, in one of their own). One JSON file for
each model; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "studies/search")]
os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))

from models import MODELS, Model, settings  # noqa: E402

from autocompile.config import EAGER, CompileConfig  # noqa: E402
from autocompile.execute.executor import Ended, Ending, Executor, Job  # noqa: E402
from autocompile.execute.job import Workshop  # noqa: E402
from autocompile.execute.process import LocalExecutor  # noqa: E402
from autocompile.record import RunFolder  # noqa: E402

SETS, ROUNDS, SET_S = 3, 12, 20.0
TIMEOUT_S = 200.0


def run(executor: Executor, job: Job) -> Ending:
    """One job, with nothing beside it."""
    executor.start(job)
    while True:
        for event in executor.wait(0.5):
            if isinstance(event, Ended) and event.number == job.number:
                return event.ending


def cold(
    executor: Executor, workshop: Workshop, model: Model, size: int | None, config: CompileConfig
) -> tuple[int, dict[str, Any]]:
    """A trial of the search: its number and row."""
    number = workshop.next_number()
    request = {
        "kind": "trial",
        "phase": model.phase,
        "config": config.to_dict(),
        "batch_size": size,
        "limits": {},
        "calls_per_update": model.calls_per_update,
    }
    began = time.monotonic()
    ending = run(executor, workshop.job(number, request, alone=True))
    said = ending.payload
    return number, {
        "config": config.to_dict(),
        "batch_size": size,
        "outcome": ending.outcome.value,
        "step": ending.step.value,
        "message": ending.message[:200],
        "seconds": round(ending.wall_s, 2),
        "wall_s": round(time.monotonic() - began, 2),
        "step_s": {k: round(v, 2) for k, v in ending.step_s.items()},
        "compile_s": said.get("compile_s"),
        "refresh_s": said.get("refresh_s"),
        "code": said.get("code", ""),
        "searched": rounded(said.get("measurement")),
        "sets": [],
    }


def rounded(measurement: dict[str, Any] | None) -> dict[str, Any] | None:
    """Raw block times in microseconds."""
    if not measurement:
        return None
    return {k: [round(1e6 * t, 2) for t in measurement[k]] for k in ("eager_s", "compiled_s")}


def race(
    executor: Executor,
    workshop: Workshop,
    model: Model,
    size: int | None,
    rows: dict[int, dict[str, Any]],
    number: int,
) -> None:
    """One set: adds the raw blocks of each row that works."""
    order = [n for n, row in rows.items() if row["outcome"] == "ok"]
    random.Random(number).shuffle(order)
    alone = [n for n in order if rows[n]["config"]["threads"] is not None]
    groups = [[n for n in order if n not in alone], *([n] for n in alone)]
    for group in (g for g in groups if g):
        request = {
            "kind": "race",
            "phase": model.phase,
            "batch_size": size,
            "block_s": 0.02,
            "rounds": ROUNDS,
            "max_s": SET_S,
            "takes_turns": False,
            "sides": [
                {
                    "number": n,
                    "config": rows[n]["config"],
                    "cache": str(workshop.cache_of(n)),
                    "is_warm": True,
                }
                for n in group
            ],
        }
        began = time.monotonic()
        ending = run(executor, workshop.job(workshop.next_number(), request, alone=True))
        for side in ending.payload.get("sides", ()):
            row = rows[side["number"]]
            row["sets"].append(
                {
                    "set": number,
                    "outcome": side.get("outcome", ending.outcome.value),
                    "message": side.get("message", "")[:200],
                    "reference_us": round(1e6 * (ending.payload.get("reference_s") or 0.0), 1),
                    "warm_compile_s": side.get("compile_s"),
                    **(rounded(side.get("measurement")) or {}),
                }
            )
        took = time.monotonic() - began
        told = f"{ending.outcome.value} {ending.message}".rstrip()
        print(f"  set {number}: {len(group)} settings, {took:.0f} s, {told}")


def log_speedup(row: dict[str, Any]) -> float | None:
    """The median over sets of the median ratio of a set's rounds, as a logarithm."""
    logs = [
        median(math.log(e / c) for e, c in zip(s["eager_s"], s["compiled_s"], strict=True))
        for s in row["sets"]
        if s.get("eager_s")
    ]
    return median(logs) if logs else None


def table(model: Model, device: str, sizes: list[int | None], path: Path) -> None:
    """Measure what is not there yet of a model."""
    data: dict[str, Any] = {"rows": []}
    if path.exists():
        data = json.loads(path.read_text())
    for size in sizes:
        if any(row["batch_size"] == size for row in data["rows"]):
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="autocompile-table-") as scratch:
            folder = RunFolder(Path(scratch))
            folder.create()
            base = {"target": str(ROOT / model.target), "device": device, "seed": 0}
            workshop = Workshop(folder, {**base, "tolerance": None}, TIMEOUT_S, None)
            executor = LocalExecutor(jobs=1)
            try:
                phases = [model.phase]
                request = {"phases": phases, "batch_size": size or 4, "backends": None}
                probe = run(executor, workshop.probe_job(request, True))
                rows = {}
                for order, config in enumerate(settings(model, device)):
                    number, row = cold(executor, workshop, model, size, config)
                    rows[number] = {"order": order, **row}
                    print(f"  {row['outcome']:14} {row['seconds']:6.1f} s  {config.label()}")
                for number in range(SETS):
                    race(executor, workshop, model, size, rows, number)
            finally:
                executor.close()
        for row in rows.values():
            row["log_speedup"] = log_speedup(row)
            failed = [s["outcome"] for s in row["sets"] if s["outcome"] != "ok"]
            if row["outcome"] == "ok" and failed:
                row["outcome"] = failed[0]
        layers = "conv" if model.layers == "conv" else "other"
        kind = "forward" if model.phase.startswith("forward") else model.phase
        environment = probe.payload["environment"]
        data |= {
            "schema": 1,
            "model": model.name,
            "phase": model.phase,
            "layers": model.layers,
            "kind": f"{device}/{kind}/{layers}" if kind == "forward" else f"{device}/{kind}",
            "calls_per_update": model.calls_per_update,
            "machine": {**environment, "host": platform.machine()},
            "eager": EAGER.to_dict(),
        }
        data["rows"] += list(rows.values())
        data.setdefault("wall_s", {})[str(size)] = round(time.monotonic() - began, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=None, separators=(",", ":")) + "\n")
        print(f"{model.name} batch {size}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="names, with commas; all if left out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, default=9, help="at most so many batch sizes of each")
    parser.add_argument(
        "--until", type=float, default=math.inf, help="begin no table after seconds"
    )
    parser.add_argument("--to", type=Path, default=None, help="folder")
    options = parser.parse_args()
    started = time.monotonic()
    to = options.to or ROOT / "studies/search" / options.device / "tables"
    names = options.model.split(",") if options.model else list(MODELS)
    for name in names:
        model = MODELS[name]
        sizes = list(model.batch_sizes)
        middle = sizes[len(sizes) // 2]
        order = [middle, *(s for s in sizes if s != middle)][: options.sizes]
        for one in order:
            if time.monotonic() - started < options.until:
                table(model, options.device, [one], to / f"{name}.json")
