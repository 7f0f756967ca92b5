"""What a user waits for a whole run, against the loop that people write over the same settings.

    python studies/tuning_cost/tuning_cost.py compare --device cpu --out cpu/whole.json
    python studies/tuning_cost/tuning_cost.py growth --out growth.json

``compare`` has three arms:

- ``naive``: a shell loop over the settings, one fresh interpreter after the other with torch's
  default caches and compile threads; each runs the code of a trial of the search;
- ``tune``: autocompile to the end of the same list, confirming and report included, from the start
  of the command to the report; ``search_s`` is when its first race began;
- ``search``: the same, ended where the first race would begin: what confirming costs is the
  difference, as far as two runs are alike.

``growth`` gives the tuner trials that cost nothing and looks at what is left.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from fakes import FakeExecutor, measured

import autocompile
from autocompile.api import Parts, tune_with
from autocompile.progress import Progress
from autocompile.request import Request
from autocompile.settings.config import CompileConfig, Setting
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.record import Measurement, Record

ARMS = ("naive", "tune", "search")
ROOT = Path(__file__).resolve().parents[2]
NOTHING_ELSE: dict[str, Any] = {  # of the dimensions that the full effort has
    "fullgraph": (False,),
    "dynamic": (None,),
    "options": ((),),
    "scope": ("model",),
    "memory_format": ("default",),
    "optimizer": ("default",),
    "freezing": (False,),
    "threads": (None,),
}


@dataclass(frozen=True)
class Workload:
    """What is tuned: eager, cudagraphs and modes of inductor, at each batch size."""

    target: str
    phase: str
    batch_sizes: tuple[int, ...]
    modes: tuple[str, ...]

    @property
    def space(self) -> SearchSpace:
        return SearchSpace(
            backends=("inductor", "cudagraphs"),
            modes=self.modes,
            batch_sizes=self.batch_sizes,
            **NOTHING_ELSE,
        )

    def settings(self) -> list[tuple[dict[str, Any], int]]:
        """What the loop runs: the same list, nothing merged."""
        configs = [CompileConfig("eager"), *(CompileConfig(mode=m) for m in self.modes)]
        configs.append(CompileConfig("cudagraphs"))
        return [(c.to_dict(), size) for c in configs for size in self.batch_sizes]


MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
WORKLOADS = {
    "cpu": Workload(
        "examples/ppo_breakout.py",
        "forward_exploration",
        (1, 2, 4, 8, 16, 32),
        (*MODES, "lite"),
    ),
    "cuda": Workload("studies/tuning_cost/ppo_cnn.py", "forward", (1, 4, 16), MODES),
}


class Watch(Progress):
    """Notes when things happened; may stop the run where the first race would begin."""

    def __init__(self, stops_at_races: bool) -> None:
        self.began = time.monotonic()
        self.stops = stops_at_races
        self.first_s: float | None = None
        self.race_s: float | None = None
        self.warnings: list[str] = []

    def started(self, number: int, setting: Setting, role: str) -> None:
        self.first_s = self.first_s or time.monotonic() - self.began

    def racing(
        self, phase: str, batch_size: int | None, sides: int, number: int
    ) -> None:
        self.race_s = self.race_s or time.monotonic() - self.began
        if self.stops:
            raise KeyboardInterrupt

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def numbers(measurement: Measurement | None) -> dict[str, Any]:
    """A trial's speed-up with its interval, and the median time of a call of each side."""
    if measurement is None:
        return {"speedup": None}
    found = measurement.speedup
    return {
        "speedup": [found.value, found.low, found.high],
        "eager_us": 1e6 * measurement.eager_call_s,
        "compiled_us": 1e6 * measurement.compiled_call_s,
    }


def choices(log: Path) -> list[list[Any]]:
    """What Inductor's autotuning chose: the operation, its choice, and the runner-up's time.

    A side of a race has no log of its own.
    """
    if not log.exists():
        return []
    found, lines = [], log.read_text("utf-8", "replace").splitlines()
    for line, *rest in (lines[i : i + 4] for i in range(len(lines))):
        if match := re.match(r"AUTOTUNE (.*)", line):
            ranked = [re.match(r"\s+(\S+) ([\d.]+) ms ([\d.]+)%", r) for r in rest]
            ranked = [r for r in ranked if r]
            if ranked:
                second = float(ranked[1][3]) if len(ranked) > 1 else None
                found.append([match[1], ranked[0][1], second])
    return found


def start_s() -> float:
    """How long the command takes to begin: an interpreter and the tuner's own imports."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "import autocompile.cli.commands, autocompile.api"],
        check=True,
    )
    return time.monotonic() - began


def by_autocompile(
    work: Workload, jobs: int | None, device: str, races: bool, folder: Path
) -> dict[str, Any]:
    before_s = start_s()
    watch, used = Watch(stops_at_races=not races), cpu_s()
    result = autocompile.tune(
        str(ROOT / work.target),
        phases=(work.phase,),
        space=work.space,
        effort="full",
        device=device,
        jobs=jobs,
        run_dir=folder,
        progress=watch,
    )
    total_s = time.monotonic() - watch.began
    trials = [
        {
            "role": r.role,
            "config": r.config.to_dict(),
            "batch_size": r.batch_size,
            "set": r.race,
            "raced_in": r.raced_in,
            "outcome": r.outcome.value,
            "message": r.message,
            "wall_s": r.wall_s,
            "step_s": dict(r.step_s),
            "compile_s": r.compile_s,
            **numbers(r.measurement),
            "reference_us": round(1e6 * (r.reference_s or 0.0), 1),
            "notes": list(r.notes),
            "choices": choices(folder / "trials" / f"{r.number:04d}" / "log.txt"),
        }
        for r in result.trials
        if r.wall_s
    ]
    report = result.to_dict()["phases"][work.phase]
    every = [report["answer"], *report["other_sizes"]]
    search_s = watch.race_s if watch.race_s is not None else total_s
    return {
        "jobs": jobs,
        "wall_s": before_s + (total_s if races else search_s),
        "search_s": before_s + search_s,
        "start_s": before_s,
        "first_trial_s": before_s + (watch.first_s or 0.0),
        "tuner_cpu_share": (cpu_s() - used) / total_s,
        "sets": [a["best"]["confirmed_processes"] for a in every if a["best"]],
        "decided": [a["confidence"] == "high" for a in every if a["best"]],
        "warnings": watch.warnings,
        "environment": result.environment,
        "trials": trials,
    }


def by_loop(work: Workload, device: str, folder: Path) -> dict[str, Any]:
    """One interpreter after the other; they share torch's caches, which begin empty."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    environment = {**os.environ, "TMPDIR": str(temporary)}
    trials = []
    for number, (config, batch_size) in enumerate(work.settings()):
        trial = folder / f"{number:04d}"
        trial.mkdir()
        request = {
            "kind": "trial",
            "target": str(ROOT / work.target),
            "device": device,
            "seed": 0,
            "number": number,
            "phase": work.phase,
            "sides": [{"config": config}],
            "batch_size": batch_size,
            "limits": {},
        }
        (trial / "request.json").write_text(json.dumps(request))
        began = time.monotonic()
        with open(trial / "log.txt", "wb") as log:
            done = subprocess.run(
                [sys.executable, "-m", "autocompile.trial", str(trial)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        wall_s = time.monotonic() - began
        said = [json.loads(x) for x in done.stdout.splitlines() if x.startswith(b"{")]
        ended = said[-1] if said else {}
        # The record of the one setting; how the trial ended where it has none.
        last = {**(ended.get("sides") or [{}])[0], "outcome": ended.get("outcome")}
        raw = last.get("measurement")
        trials.append(
            {
                "config": config,
                "batch_size": batch_size,
                "outcome": last.get("outcome"),
                "message": last.get("message", ""),
                "wall_s": wall_s,
                "compile_s": last.get("compile_s"),
                **numbers(raw and Measurement.from_dict(raw)),
                "choices": choices(trial / "log.txt"),
            }
        )
        print(
            number,
            config["backend"],
            config["mode"],
            f"{wall_s:.1f} s",
            file=sys.stderr,
        )
    return {"wall_s": sum(t["wall_s"] for t in trials), "trials": trials}


def compare(device: str, arms: list[str], jobs: int | None, out: Path) -> None:
    """Run the arms that are asked for and add them to the file."""
    work = WORKLOADS[device]
    results = {"schema": 2, "target": work.target, "phase": work.phase}
    if out.exists():
        results = json.loads(out.read_text())
    for arm in arms:
        with tempfile.TemporaryDirectory(prefix="tuning-cost-") as scratch:
            folder = Path(scratch) / "run"
            if arm == "naive":
                results[arm] = by_loop(work, device, folder)
            else:
                results[arm] = by_autocompile(work, jobs, device, arm == "tune", folder)
        print(f"{arm}: {results[arm]['wall_s']:.1f} s", file=sys.stderr)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1) + "\n")


def growth(out: Path) -> None:
    """The tuner's own cost for each trial: settings that take no time, 3 for each batch size."""

    class Stamps(Progress):
        def __init__(self) -> None:
            self.at: list[tuple[float, float]] = []

        def ended(self, record: Record, left: int) -> None:
            self.at.append((time.monotonic(), cpu_s()))

        def racing(
            self, phase: str, batch_size: int | None, sides: int, number: int
        ) -> None:
            raise KeyboardInterrupt

    def trial(request: dict[str, Any]) -> Any:
        eager = request["config"]["backend"] == "eager"
        return measured(1.0 if eager else 1.2, rounds=24)

    rows = []
    for sizes in (8, 32, 128):
        with tempfile.TemporaryDirectory(prefix="tuning-cost-") as scratch:
            target = Path(scratch) / "net.py"
            target.write_text("# never run\n")
            stamps = Stamps()
            request = Request(
                str(target),
                space=SearchSpace(
                    backends=("inductor",),
                    batch_sizes=tuple(range(1, sizes + 1)),
                    **NOTHING_ELSE,
                ),
                effort="full",
                run_dir=Path(scratch) / "run",
            )
            tune_with(request, Parts(FakeExecutor(trial), stamps))
            report_s = time.monotonic() - stamps.at[-1][0]
        trials, quarter = len(stamps.at), len(stamps.at) // 4

        def each_ms(begin: int, end: int, clock: int, at: Any = stamps.at) -> float:
            return 1e3 * (at[end][clock] - at[begin][clock]) / (end - begin)

        rows.append(
            {
                "trials": trials,
                "wall_ms_per_trial": each_ms(0, trials - 1, 0),
                "cpu_ms_per_trial": each_ms(0, trials - 1, 1),
                "first_quarter_ms": each_ms(0, quarter, 0),
                "last_quarter_ms": each_ms(trials - 1 - quarter, trials - 1, 0),
                "report_s": report_s,
                "report_ms_per_trial": 1e3 * report_s / trials,
            }
        )
        print(rows[-1], file=sys.stderr)
    out.write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("compare")
    one.add_argument("--device", choices=sorted(WORKLOADS), default="cpu")
    one.add_argument("--arms", default=",".join(ARMS))
    one.add_argument("--jobs", type=int, help="of autocompile; its default if left out")
    one.add_argument("--sizes", type=int, help="only the first so many batch sizes")
    one.add_argument("--modes", type=int, help="only the first so many modes")
    two = commands.add_parser("growth")
    for each in (one, two):
        each.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "growth":
        growth(args.out)
    else:
        work = WORKLOADS[args.device]
        WORKLOADS[args.device] = dataclasses.replace(
            work,
            batch_sizes=work.batch_sizes[: args.sizes],
            modes=work.modes[: args.modes],
        )
        compare(args.device, args.arms.split(","), args.jobs, args.out)


if __name__ == "__main__":
    main()
