"""Measure complete tables: every setting of a model, in several fresh processes.

    python studies/search/tables.py --model convnet,adam

Of each setting first one cold trial, as a search makes it. Then sets of fresh processes in which
all settings that work take turns block by block with eager mode (those that set something for the
whole process, in one of their own). A table of the model that is in the file already is replaced.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]
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
from autocompile.settings.config import CompileConfig, Setting  # noqa: E402
from autocompile.store.record import Checks, RunFolder  # noqa: E402

SETS, ROUNDS, SET_S = 3, 12, 20.0
TIMEOUT_S = 200.0
DEFAULTS = CompileConfig().to_dict()


def run(executor: LocalExecutor, job: Job) -> Ending:
    executor.start(job)
    while True:
        for event in executor.wait(0.5):
            if isinstance(event, Ended):
                return event.ending


def cold_row(
    model: Model, config: CompileConfig, factory: JobFactory, executor: LocalExecutor
) -> dict[str, Any]:
    """Make a trial of the search; what is kept of it."""
    request = TrialRequest(
        header=factory.header,
        number=factory.next_number(),
        phase=model.phase,
        sides=(Side(config),),
        batch_size=model.batch_size,
        calls_per_update=model.calls_per_update,
    )
    ending = run(executor, factory.job(request, alone=True))
    said = of_only_side(ending.payload)
    setting = Setting(config, model.batch_size, model.phase)
    record = to_record(-1, setting, dataclasses.replace(ending, payload=said))
    row = {
        "number": request.number,
        "config": {k: v for k, v in config.to_dict().items() if v != DEFAULTS[k]},
        "batch_size": model.batch_size,
        "outcome": ending.outcome.value,
        "seconds": round(ending.wall_s, 2),
        "compile_s": record.compile_s and round(record.compile_s, 2),
        "message": ending.message[:200],
        "refresh_s": said.get("refresh_s"),
    }
    print(f"  {row['outcome']:14} {row['seconds']:6.1f} s  {config.label()}")
    return {name: value for name, value in row.items() if value not in (None, "")}


def add_set(
    model: Model,
    rows: list[dict[str, Any]],
    number: int,
    factory: JobFactory,
    executor: LocalExecutor,
) -> None:
    """Race what works in fresh processes; each row gets its speed-up there."""
    works = [row for row in rows if row["outcome"] == "ok"]
    random.Random(number).shuffle(works)
    alone = [row for row in works if "threads" in row["config"]]
    together = [row for row in works if row not in alone]
    for group in (together, *([row] for row in alone)):
        sides = [
            Side(
                CompileConfig.from_dict(row["config"]),
                row["number"],
                str(factory.cache_of(row["number"])),
                True,
                Checks.FIRST,
            )
            for row in group
        ]
        request = TrialRequest(
            header=factory.header,
            number=factory.next_number(),
            phase=model.phase,
            sides=tuple(sides),
            batch_size=model.batch_size,
            limits=TimingLimits.exactly(ROUNDS, SET_S),
        )
        ending = run(executor, factory.job(request, alone=True))
        print(f"  set {number}: {len(group)} settings, {ending.outcome.value}")
        said = {
            s["number"]: s for s in ending.payload.get("sides", ()) if "number" in s
        }
        for row in group:
            side = said.get(row["number"], {})
            outcome = side.get("outcome", ending.outcome.value)
            times = side.get("measurement")
            if outcome != "ok" or not times:
                row["outcome"] = "runtime_error" if outcome == "ok" else outcome
                continue
            pairs = zip(times["eager_s"], times["compiled_s"], strict=True)
            seen = {
                "set": number,
                "speedup": round(median(eager / own for eager, own in pairs), 5),
                "eager_us": round(1e6 * median(times["eager_s"]), 1),
                "warm_compile_s": side.get("compile_s"),
            }
            row.setdefault("sets", []).append(seen)


def table(model: Model, device: str) -> dict[str, Any]:
    """Measure a model."""
    header = Header(str(ROOT / model.target), device)
    executor = LocalExecutor(jobs=1)
    try:
        with tempfile.TemporaryDirectory(prefix="autocompile-table-") as scratch:
            folder = RunFolder(Path(scratch))
            folder.create()
            factory = JobFactory(folder, header, TIMEOUT_S, None, _next=1)
            request = ProbeRequest(
                header=header, phases=(model.phase,), batch_size=model.batch_size or 4
            )
            probe = run(executor, factory.probe_job(request, compiles=True))
            if "environment" not in probe.payload:
                raise SystemExit(f"{model.name}: {probe.outcome.value} {probe.message}")
            rows = [
                cold_row(model, config, factory, executor)
                for config in settings(model, device)
            ]
            for number in range(SETS):
                add_set(model, rows, number, factory, executor)
    finally:
        executor.close()
    for row in rows:
        del row["number"]
        if row["outcome"] == "ok":
            log = median(math.log(one["speedup"]) for one in row["sets"])
            row["log_speedup"] = round(log, 5)
        else:
            row.pop("sets", None)
    kind = "forward" if model.phase.startswith("forward") else model.phase
    if kind == "forward":
        kind += "/conv" if model.layers == "conv" else "/other"
    seen = probe.payload["environment"]
    return {
        "machine": f"{seen['device_name']}, {seen['cores']} cores",
        "torch": seen["torch"],
        "phase": model.phase,
        "kind": f"{device}/{kind}",
        "calls_per_update": model.calls_per_update,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = ",".join(MODELS)
    parser.add_argument(
        "--model", default=usual, help="names, with commas; all if left out"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--to", type=Path, help="DEVICE.json beside this script")
    options = parser.parse_args()
    path = options.to or HERE / f"{options.device}.json"
    known = json.loads(path.read_text())["tables"] if path.exists() else {}
    for name in options.model.split(","):
        began = time.monotonic()
        known[name] = table(MODELS[name], options.device)
        print(f"{name}: {time.monotonic() - began:.0f} s")
        lines = [f" {json.dumps(n)}: {json.dumps(t)}" for n, t in sorted(known.items())]
        path.write_text('{"tables": {\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
