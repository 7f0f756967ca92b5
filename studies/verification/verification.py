"""Which errors are found, and which right settings are refused?

    python studies/verification/verification.py liars --to FOLDER [--device cuda --jobs 14]
    python studies/verification/verification.py honest --to FOLDER [--models gpt2,bert]
    python studies/verification/verification.py table FOLDER ... [--readme]

Each trial is one of ``autocompile.tune``: its own process, its own check. ``liars`` and ``honest``
write ``liars.json`` and ``honest.json``; a later call adds to them. ``--package PATH`` takes the
autocompile of another checkout. Nothing is raced: a run ends where its races would begin.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
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
import tables  # noqa: E402

_TRIAL_S = 150.0  # limit of each step of a trial
_ON_CPU = {"VERIFICATION_SMALL": "1"}


@dataclasses.dataclass
class Asked:
    """What the command line says of all runs."""

    device: str
    jobs: int | None
    ends: float  # by time.monotonic(): no run begins later, and one that runs is ended
    each_s: float  # of a run
    seed: int

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")


def ends_before_races(ends: float) -> Any:
    """A progress that presses Ctrl-C where races begin, or at a time."""
    from autocompile import Progress

    class Ends(Progress):
        pressed = False

        def press(self) -> None:
            if not self.pressed:
                self.pressed = True
                signal.raise_signal(signal.SIGINT)

        def racing(self, *_: Any) -> None:
            self.press()

        def tick(self) -> None:
            if time.monotonic() > ends:
                self.press()

        def ended(self, record: Any, left: int) -> None:
            print(f"  {record.outcome.value:14} {record.config.label()}", flush=True)

    return Ends()


def tuned(
    spec: str, phase: str, space: Mapping[str, Any], asked: Asked
) -> Iterator[dict[str, Any]]:
    """The trials of one run, as rows; a row without a setting says why there are none."""
    from autocompile import AutocompileError, SearchSpace, tune

    print(f"{spec} {phase}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        try:
            tune(
                spec,
                phases=(phase,),
                space=SearchSpace(**space),
                effort="full",
                timeout_s=_TRIAL_S,
                device=asked.device,
                jobs=asked.jobs,
                seed=asked.seed,
                run_dir=run,
                wait=True,
                progress=ends_before_races(
                    min(asked.ends, time.monotonic() + asked.each_s)
                ),
            )
        except AutocompileError as error:
            message = " ".join([error.what, *error.details])
            print(f"  {message}", flush=True)
            yield {"outcome": "no trial", "message": message, "config": None}
        for path in sorted(run.glob("trials/*/result.json")):
            record = json.loads(path.read_text())
            is_whole = record["wall_s"] > 0 and record["outcome"] != "interrupted"
            if record["role"] == "search" and is_whole:
                yield {
                    **{name: record[name] for name in ("outcome", "message", "config")},
                    "seconds": round(record["wall_s"], 2),
                }


def liars(asked: Asked, only: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each lie in each precision: the outcome, and what was said."""
    for name, each in catalogue.LIARS.items():
        for precision in (catalogue.FLOAT32, catalogue.BFLOAT16):
            if name not in only or time.monotonic() > asked.ends:
                continue
            is_low = precision == catalogue.BFLOAT16
            target = f"{name}_bfloat16" if is_low else name
            os.environ["VERIFICATION_TARGET"] = target
            space: dict[str, Any] = {"backends": each.backends(), "modes": ("default",)}
            if each.has_products and not is_low:
                space["autocast"] = ("none", "bfloat16")
                space["precision"] = (
                    ("default", "high") if asked.on_gpu else ("default",)
                )
            # The shape of what is tried is the lie alone.
            space |= {"scope": ("model",), "freezing": (False,), "fullgraph": (False,)}
            space |= {"memory_format": ("default",), "threads": (None,)}
            if each.phase != "forward":
                space["optimizer"] = ("default",)
            began = time.monotonic()
            for row in tuned(f"{HERE / 'lies.py'}:{target}", each.phase, space, asked):
                config = row.pop("config")
                if config is None:
                    yield {"target": name, "lie": "", "precision": precision, **row}
                elif config["backend"] != "eager":
                    seen = precision_of(config, precision)
                    row |= {"lie": config["backend"], "precision": seen}
                    yield {"target": name, **row}
            print(f"  {time.monotonic() - began:.0f} s", flush=True)


def precision_of(config: Mapping[str, Any], usual: str) -> str:
    if config["autocast"] != "none":
        return catalogue.AUTOCAST
    return catalogue.TF32 if config["precision"] != "default" else usual


def honest(asked: Asked, only: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each compiled setting of each model: the outcome, and what was said."""
    for name, model in catalogue.HONEST.items():
        for phase in model.phases:
            if name not in only or time.monotonic() > asked.ends:
                continue
            began = time.monotonic()
            space = catalogue.honest_space(model, phase, asked.device)
            spec = str(HERE / "targets" / f"{name}.py")
            for row in tuned(spec, phase, space, asked):
                config = row["config"]
                if config is None or config["backend"] != "eager":
                    yield {"model": name, "phase": phase, **row}
            print(f"  {time.monotonic() - began:.0f} s", flush=True)


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


def demand_one_package(folder: str) -> None:
    """Check that processes that start in this folder import the package that this one does."""
    import autocompile

    look = "import autocompile; print(autocompile.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", look],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    if (there := done.stdout.strip()) != autocompile.__file__:
        raise SystemExit(f"trials would import {there}, not {autocompile.__file__}")
    print(autocompile.__file__, flush=True)


def add(path: Path, rows: list[dict[str, Any]], about: Mapping[str, Any]) -> None:
    """Write the rows; those that a file has of other runs stay."""
    keys = ("target", "model", "phase")

    def run_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
        of_lie = row.get("precision") == catalogue.BFLOAT16 if "lie" in row else None
        return (*map(row.get, keys), of_lie)

    new = {run_of(row) for row in rows}
    kept = json.loads(path.read_text())["rows"] if path.exists() else []
    every = [row for row in kept if run_of(row) not in new] + rows
    path.write_text(json.dumps({**about, "rows": every}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, known in (("liars", catalogue.LIARS), ("honest", catalogue.HONEST)):
        one = commands.add_parser(name)
        one.add_argument("--to", type=Path, required=True, help="folder of the JSON")
        one.add_argument("--package", type=Path, help="a checkout to take the place")
        one.add_argument("--device", default="cpu")
        one.add_argument("--jobs", type=int, help="trials side by side")
        one.add_argument("--seconds", type=float, default=1e9, help="of all runs")
        one.add_argument("--each", type=float, default=1e9, help="seconds of a run")
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--models", default=",".join(known), help="names, with commas")
    one = commands.add_parser("table")
    one.add_argument("folders", type=Path, nargs="+", help="the columns, in order")
    one.add_argument("--readme", action="store_true", help="write them to README.md")
    options = parser.parse_args()
    if options.command == "table":
        tables.show(options.folders, HERE / "README.md" if options.readme else None)
        return
    to = options.to.absolute()
    to.mkdir(parents=True, exist_ok=True)
    package = (options.package or HERE.parents[1]).absolute()
    sys.path.insert(0, str(package))
    places = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    os.environ.update({} if options.device.startswith("cuda") else _ON_CPU)
    asked = Asked(
        options.device,
        options.jobs,
        time.monotonic() + options.seconds,
        options.each,
        options.seed,
    )
    only = options.models.split(",")
    find = {"liars": liars, "honest": honest}[options.command]
    rows: list[dict[str, Any]] = []
    # Away from the checkout: Python looks into the current folder first.
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        demand_one_package(folder)
        about = machine(options.device)
        for row in find(asked, only):
            rows.append(row)
            add(to / f"{options.command}.json", rows, about)
    print(f"{len(rows)} trials: {to / options.command}.json")


if __name__ == "__main__":
    main()
