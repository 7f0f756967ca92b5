"""Which errors are found, and which right settings are refused?

    python studies/verification/verification.py liars --to FILE [--device cuda --jobs 14]
    python studies/verification/verification.py honest --to FILE [--models gpt2,bert]
    python studies/verification/verification.py table FILE ...

Each trial is what the search asks of a child (pool.py). ``liars`` and ``honest`` are lists of one
JSON file; a later call replaces one of them. ``--device cuda:0,cuda:1`` takes several GPUs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import catalogue  # noqa: E402
import pool  # noqa: E402

_FOUND = ("wrong_output", "stale_weights")
_JUDGED = (*_FOUND, "ok")
Rows = Sequence[Mapping[str, Any]]


def liar_tasks(only: list[str], on_gpu: bool) -> Iterator[pool.Task]:
    """A trial for each lie in each precision."""
    for name in only:
        each = catalogue.LIARS[name]
        for usual in (catalogue.FLOAT32, catalogue.BFLOAT16):
            is_low = usual == catalogue.BFLOAT16
            target = f"{name}_bfloat16" if is_low else name
            ways: dict[str, dict[str, str]] = {usual: {}}
            if each.has_products and not is_low:
                ways[catalogue.AUTOCAST] = {"autocast": "bfloat16"}
                if on_gpu:
                    ways[catalogue.TF32] = {"precision": "high"}
            for backend, (precision, way) in itertools.product(
                each.backends(), ways.items()
            ):
                yield pool.Task(
                    str(HERE / "lies.py"),
                    each.phase,
                    {"backend": backend, **way},
                    {"target": name, "lie": backend, "precision": precision},
                    {"VERIFICATION_TARGET": target},
                )


def honest_tasks(only: list[str], on_gpu: bool) -> Iterator[pool.Task]:
    """A trial for each compiled setting of each model in each phase."""
    small = {} if on_gpu else {"VERIFICATION_SMALL": "1"}
    for name in only:
        model = catalogue.HONEST[name]
        for phase in model.phases:
            about = {"model": name, "phase": phase}
            for config in catalogue.honest_settings(model, phase, on_gpu):
                about["config"] = config
                target = str(HERE / "targets" / model.target)
                yield pool.Task(target, phase, config, dict(about), small)


def machine(device: str) -> dict[str, str]:
    """What it runs on, as a process of its own sees it: this one keeps off the GPU."""
    look = "import torch; print(torch.__version__, end=' ')"
    look += "" if device == "cpu" else "; print(torch.cuda.get_device_name())"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True
    )
    version, _, name = done.stdout.strip().partition(" ")
    name = platform.machine() if device == "cpu" else name
    return {"machine": f"{name}, {os.cpu_count()} cores", "torch": version}


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file with a line for each row."""
    parts = []
    for name, value in data.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
        parts.append(f' "{name}": {text}')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


# Tables ---------------------------------------------------------------------------------


def answer(data: Mapping[str, Any]) -> dict[str, int]:
    """How many lies are told and found, how many right settings judged and refused."""
    named = {lie for each in catalogue.LIARS.values() for lie in each.lies}
    lies = [row["outcome"] for row in data["liars"] if row["lie"] in named]
    controls = [row for row in data["liars"] if row["lie"] == catalogue.CONTROL]
    right = [row["outcome"] for row in (*controls, *data["honest"])]
    return {
        "told": sum(outcome in _JUDGED for outcome in lies),
        "found": sum(outcome in _FOUND for outcome in lies),
        "judged": sum(outcome in _JUDGED for outcome in right),
        "refused": sum(outcome in _FOUND for outcome in right),
        "without a judgement": sum(outcome not in _JUDGED for outcome in right),
    }


def by_lie(data: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, str]]:
    """Of each target and backend the outcomes by precision."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in data["liars"]:
        of_lie = found.setdefault((row["target"], row["lie"]), {})
        of_lie[row["precision"]] = row["outcome"]
    return found


def sizes(data: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Of each kind of error the smallest size from which on every one is found, by precision."""
    outcomes = by_lie(data)
    found: dict[str, dict[str, str]] = {}
    for target, each in catalogue.LIARS.items():
        for kind, text in each.scans.items():
            tried = {s: outcomes[target, f"{kind}_{s:g}"] for s in catalogue.SIZES}
            found[text] = {}
            for precision in tried[1.0]:
                missed = [s for s, own in tried.items() if own[precision] not in _FOUND]
                above = [s for s in tried if s > max(missed, default=0.0)]
                found[text][precision] = f"{min(above):g}" if above else "none"
    return found


def line(head: str, cells: Mapping[str, str]) -> str:
    each = (cells.get(precision, "") for precision in catalogue.PRECISIONS)
    return f"| {head} | {' | '.join(each)} |"


def show(path: Path) -> None:
    """Print the tables of a file in Markdown."""
    data = json.loads(path.read_text())
    print(f"\n**{data['machine']}**: {answer(data)}\n")
    print(line("wrong program", {p: p for p in catalogue.PRECISIONS}))
    print("|---" * 5 + "|")
    outcomes = by_lie(data)
    for target, each in catalogue.LIARS.items():
        lies = {catalogue.CONTROL: f"(none: {each.phase}, {target})", **each.lies}
        for lie, text in lies.items():
            print(line(text, outcomes[target, lie]))
    for text, of_kind in sizes(data).items():
        print(line(f"{text}, from this size on", of_kind))
    counts = Counter(
        (row["model"], row["phase"], row["outcome"]) for row in data["honest"]
    )
    print("\n| right settings of | phase | outcome | count |\n|---|---|---|---|")
    for (model, *rest), count in sorted(counts.items()):
        words = catalogue.HONEST[model].words
        print(f"| {words} | {' | '.join(rest)} | {count} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, known in (("liars", catalogue.LIARS), ("honest", catalogue.HONEST)):
        one = commands.add_parser(name)
        one.add_argument("--to", type=Path, required=True, help="the JSON")
        one.add_argument("--device", default="cpu")
        one.add_argument("--jobs", type=int, default=2, help="trials side by side")
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--models", default=",".join(known), help="names, with commas")
    one = commands.add_parser("table")
    one.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "table":
        for path in options.files:
            show(path)
        return
    path = options.to.absolute()
    package = str(HERE.parents[1])
    sys.path.insert(0, package)
    places = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    devices = options.device.split(",")
    tasks_of = {"liars": liar_tasks, "honest": honest_tasks}[options.command]
    tasks = list(tasks_of(options.models.split(","), devices[0] != "cpu"))
    random.Random(options.seed).shuffle(tasks)
    data = (
        json.loads(path.read_text()) if path.exists() else {"liars": [], "honest": []}
    )
    data |= {**machine(devices[0]), options.command: []}
    # Away from the checkout: Python looks into the current folder first.
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for row in pool.results(tasks, devices, options.jobs, options.seed):
            print(json.dumps(row), flush=True)
            data[options.command].append(row)
            write(path, data)
        os.chdir(package)


if __name__ == "__main__":
    main()
