"""Measure complete tables again: every setting of a model, in several fresh processes.

    python studies/search/tables.py --model convnet,adam

Phase, batch size and settings are those that the recorded table of the model names; for another
model, write a table that names them. Of each setting first one cold trial, as a search makes it.
Then sets of fresh processes in which all settings that work take turns block by block with eager
mode (those that set something for the whole process, in one of their own).
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
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(
    (str(ROOT), os.environ.get("PYTHONPATH", ""))
)

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


def run(executor: LocalExecutor, job: Job) -> Ending:
    executor.start(job)
    while True:
        for event in executor.wait(0.5):
            if isinstance(event, Ended):
                return event.ending


def cold_row(
    table: dict[str, Any],
    row: dict[str, Any],
    factory: JobFactory,
    executor: LocalExecutor,
) -> dict[str, Any]:
    """Make a trial of the search with the setting of a row; what is kept of it."""
    config = CompileConfig.from_dict(row["config"], table["phase"])
    request = TrialRequest(
        header=factory.header,
        number=factory.next_number(),
        phase=table["phase"],
        sides=(Side(config),),
        batch_size=row["batch_size"],
        calls_per_update=table.get("calls_per_update"),
    )
    ending = run(executor, factory.job(request, alone=True))
    said = of_only_side(ending.payload)
    setting = Setting(config, row["batch_size"], table["phase"])
    record = to_record(-1, setting, dataclasses.replace(ending, payload=said))
    seen = {
        "number": request.number,
        "config": row["config"],
        "batch_size": row["batch_size"],
        "outcome": ending.outcome.value,
        "seconds": round(ending.wall_s, 2),
        "compile_s": record.compile_s and round(record.compile_s, 2),
        "message": ending.message[:200],
        "refresh_s": said.get("refresh_s"),
    }
    print(f"  {seen['outcome']:14} {seen['seconds']:6.1f} s  {config.label()}")
    kept = ("batch_size",)
    return {k: v for k, v in seen.items() if k in kept or v not in (None, "")}


def add_set(
    phase: str,
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
                CompileConfig.from_dict(row["config"], phase),
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
            phase=phase,
            sides=tuple(sides),
            batch_size=group[0]["batch_size"],
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


def measured(name: str, table: dict[str, Any], device: str) -> dict[str, Any]:
    """A table with what its settings take now."""
    phase = table["phase"]
    header = Header(str(HERE / "targets" / f"{name}.py"), device)
    executor = LocalExecutor(jobs=1)
    try:
        with tempfile.TemporaryDirectory(prefix="autocompile-table-") as scratch:
            folder = RunFolder(Path(scratch))
            folder.create()
            factory = JobFactory(folder, header, TIMEOUT_S, None, _next=1)
            request = ProbeRequest(header=header, phases=(phase,), batch_size=4)
            probe = run(executor, factory.probe_job(request, compiles=True))
            if "environment" not in probe.payload:
                raise SystemExit(f"{name}: {probe.outcome.value} {probe.message}")
            rows = [cold_row(table, row, factory, executor) for row in table["rows"]]
            for number in range(SETS):
                add_set(phase, rows, number, factory, executor)
    finally:
        executor.close()
    for row in rows:
        del row["number"]
        if row["outcome"] == "ok":
            log = median(math.log(one["speedup"]) for one in row["sets"])
            row["log_speedup"] = round(log, 5)
        else:
            row.pop("sets", None)
    seen = probe.payload["environment"]
    machine = f"{seen['device_name']}, {seen['cores']} cores"
    return {**table, "machine": machine, "torch": seen["torch"], "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="names, with commas; all if left out")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--to", type=Path, help="the JSON, if not DEVICE.json")
    options = parser.parse_args()
    path = HERE / f"{options.device}.json"
    tables = json.loads(path.read_text())["tables"]
    for name in options.model.split(",") if options.model else list(tables):
        began = time.monotonic()
        tables[name] = measured(name, tables[name], options.device)
        print(f"{name}: {time.monotonic() - began:.0f} s")
        lines = [f" {json.dumps(n)}: {json.dumps(t)}" for n, t in tables.items()]
        text = '{"tables": {\n' + ",\n".join(lines) + "\n}}\n"
        (options.to or path).write_text(text)


if __name__ == "__main__":
    main()
