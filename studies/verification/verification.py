"""Which errors are found, and which right settings are refused?

    python studies/verification/verification.py liars --to FOLDER [--device cuda --jobs 14]
    python studies/verification/verification.py honest --to FOLDER [--models gpt2,bert]
    python studies/verification/verification.py table FOLDER ...

Each trial is what the search asks of a child (pool.py). ``liars`` and ``honest`` write ``liars.json``
and ``honest.json``; a later call adds to them. ``--device cuda:0,cuda:1`` takes several GPUs.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import catalogue  # noqa: E402
import pool  # noqa: E402
import tables  # noqa: E402

_ON_CPU = {"VERIFICATION_SMALL": "1"}


@dataclasses.dataclass
class Asked:
    """What the command line says of all runs."""

    device: str
    seed: int
    phases: tuple[str, ...]  # none: all

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")


def liar_tasks(asked: Asked, only: list[str]) -> Iterator[pool.Task]:
    """A trial for each lie in each precision."""
    for name, each in catalogue.LIARS.items():
        for precision in (catalogue.FLOAT32, catalogue.BFLOAT16):
            if name not in only:
                continue
            is_low = precision == catalogue.BFLOAT16
            target = f"{name}_bfloat16" if is_low else name
            ways: list[dict[str, str]] = [{}]
            if each.has_products and not is_low:
                ways.append({"autocast": "bfloat16"})
                ways += [{"precision": "high"}] if asked.on_gpu else []
            for backend, way in itertools.product(each.backends(), ways):
                seen = precision_of(way, precision)
                yield pool.Task(
                    f"{HERE / 'lies.py'}:{target}",
                    each.phase,
                    {"backend": backend, **way},
                    {"target": name, "lie": backend, "precision": seen},
                    {"VERIFICATION_TARGET": target},
                )


def honest_tasks(asked: Asked, only: list[str]) -> Iterator[pool.Task]:
    """A trial for each compiled setting of each model in each phase."""
    for name, model in catalogue.HONEST.items():
        for phase in model.phases if name in only else ():
            spec = str(HERE / "targets" / f"{name}.py")
            if asked.phases and phase not in asked.phases:
                continue
            for config in catalogue.honest_settings(model, phase, asked.on_gpu):
                yield pool.Task(spec, phase, config, {"model": name, "phase": phase})


def precision_of(config: Mapping[str, Any], usual: str) -> str:
    if "autocast" in config:
        return catalogue.AUTOCAST
    return catalogue.TF32 if "precision" in config else usual


def machine(device: str) -> dict[str, Any]:
    """What it runs on, as a process of its own sees it: this one keeps off the GPU."""
    look = f"""
import json, os, platform, torch
on_gpu = {device.startswith("cuda")}
name = torch.cuda.get_device_name({device!r}) if on_gpu else platform.machine()
print(json.dumps({{"machine": f"{{name}}, {{os.cpu_count()}} cores", "device": {device!r},
    "torch": torch.__version__, "python": platform.python_version()}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def add(path: Path, rows: list[dict[str, Any]], about: Mapping[str, Any]) -> None:
    """Write the rows; those that a file has of other runs stay."""

    def trial_of(row: Mapping[str, Any]) -> str:
        names = ("target", "model", "phase", "lie", "precision", "config")
        return json.dumps([row.get(name) for name in names], sort_keys=True)

    new = {trial_of(row) for row in rows}
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    every = [row for row in kept if trial_of(row) not in new] + rows
    path.write_text(json.dumps({**about, "rows": every}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, known in (("liars", catalogue.LIARS), ("honest", catalogue.HONEST)):
        one = commands.add_parser(name)
        one.add_argument("--to", type=Path, required=True, help="folder of the JSON")
        one.add_argument("--device", default="cpu")
        one.add_argument("--jobs", type=int, default=2, help="trials side by side")
        one.add_argument("--seconds", type=float, default=1e9, help="of all runs")
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--phases", default="", help="of right settings, with commas")
        one.add_argument("--models", default=",".join(known), help="names, with commas")
    one = commands.add_parser("table")
    one.add_argument("folders", type=Path, nargs="+", help="the columns, in order")
    options = parser.parse_args()
    if options.command == "table":
        tables.show(options.folders)
        return
    to = options.to.absolute()
    to.mkdir(parents=True, exist_ok=True)
    package = HERE.parents[1]
    sys.path.insert(0, str(package))
    places = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    os.environ.update({} if options.device.startswith("cuda") else _ON_CPU)
    phases = tuple(filter(None, options.phases.split(",")))
    asked = Asked(options.device, options.seed, phases)
    only = options.models.split(",")
    tasks_of = {"liars": liar_tasks, "honest": honest_tasks}[options.command]
    rows: list[dict[str, Any]] = []
    # Away from the checkout: Python looks into the current folder first.
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        devices = options.device.split(",")
        about = machine(devices[0])
        tasks = list(tasks_of(asked, only))
        # Where the time ends, what was tried is a sample of all.
        random.Random(options.seed).shuffle(tasks)
        ends = time.monotonic() + options.seconds
        for row in pool.results(tasks, devices, options.jobs, options.seed, ends):
            rows.append(row)
            print(f"{row['outcome']:14} {row}", flush=True)
            add(to / f"{options.command}.json", rows, about)
    print(f"{len(rows)} of {len(tasks)} trials: {to / options.command}.json")


if __name__ == "__main__":
    main()
