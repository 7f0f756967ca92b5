"""What a user waits for a whole run, against the loop that people write over the same settings.

    python studies/tuning_cost/tuning_cost.py          # about 13 minutes on two cores
    python studies/tuning_cost/tuning_cost.py --show   # the figures of the README

Three arms:

- ``naive``: a shell loop over the settings, one fresh interpreter after the other with torch's
  default caches and compile threads; each runs the code of a trial of the search;
- ``tune``: autocompile to the end of the same list, confirming and report included, from the start
  of the command to the report; ``search_s`` is when its first race began;
- ``search``: the same, ended where the first race would begin: what confirming costs is the
  difference, as far as two runs are alike.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import autocompile
from autocompile.progress import Progress
from autocompile.settings.config import CompileConfig, Setting
from autocompile.settings.searchspace import SearchSpace

ARMS = ("naive", "tune", "search")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET, PHASE = "examples/ppo_breakout.py", "forward_exploration"
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MODES = (
    "default",
    "reduce-overhead",
    "max-autotune-no-cudagraphs",
    "max-autotune",
    "lite",
)
SPACE = SearchSpace(
    backends=("inductor", "cudagraphs"),
    modes=MODES,
    batch_sizes=BATCH_SIZES,
    # Nothing else of what the full effort has.
    fullgraph=(False,),
    dynamic=(None,),
    options=((),),
    scope=("model",),
    memory_format=("default",),
    optimizer=("default",),
    freezing=(False,),
    threads=(None,),
)


def settings() -> list[tuple[CompileConfig, int]]:
    """What the loop runs: the list of ``tune``, nothing merged."""
    configs = [CompileConfig("eager"), *(CompileConfig(mode=m) for m in MODES)]
    configs.append(CompileConfig("cudagraphs"))
    return [(config, size) for config in configs for size in BATCH_SIZES]


class Watch(Progress):
    """Notes when things happened; may stop the run where the first race would begin."""

    def __init__(self, stops_at_races: bool) -> None:
        self.began = time.monotonic()
        self.stops = stops_at_races
        self.first_s: float | None = None
        self.race_s: float | None = None

    def started(self, number: int, setting: Setting, role: str) -> None:
        self.first_s = self.first_s or time.monotonic() - self.began

    def racing(
        self, phase: str, batch_size: int | None, sides: int, number: int
    ) -> None:
        self.race_s = self.race_s or time.monotonic() - self.began
        if self.stops:
            raise KeyboardInterrupt


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def start_s() -> float:
    """How long the command takes to begin: an interpreter and the tuner's own imports."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "import autocompile.cli.commands, autocompile.api"],
        check=True,
    )
    return time.monotonic() - began


def by_autocompile(races: bool, folder: Path) -> dict[str, Any]:
    before_s = start_s()
    watch, used = Watch(stops_at_races=not races), cpu_s()
    result = autocompile.tune(
        str(ROOT / TARGET),
        phases=(PHASE,),
        space=SPACE,
        effort="full",
        device="cpu",
        run_dir=folder,
        progress=watch,
    )
    total_s = time.monotonic() - watch.began
    report = result.to_dict()["phases"][PHASE]
    answers = [a for a in (report["answer"], *report["other_sizes"]) if a["best"]]
    search_s = watch.race_s if watch.race_s is not None else total_s
    return {
        "wall_s": before_s + (total_s if races else search_s),
        "search_s": before_s + search_s,
        "first_trial_s": before_s + (watch.first_s or 0.0),
        "tuner_cpu_share": (cpu_s() - used) / total_s,
        "sets": [answer["best"]["confirmed_processes"] for answer in answers],
        "decided": [answer["confidence"] == "high" for answer in answers],
        "trials": [
            {
                "role": r.role,
                "setting": r.config.label(),
                "batch_size": r.batch_size,
                "raced_in": r.raced_in,
                "outcome": r.outcome.value,
                "wall_s": r.wall_s,
            }
            for r in result.trials
            if r.wall_s
        ],
    }


def by_loop(folder: Path) -> dict[str, Any]:
    """One interpreter after the other; they share torch's caches, which begin empty."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    environment = {**os.environ, "TMPDIR": str(temporary)}
    trials = []
    for number, (config, batch_size) in enumerate(settings()):
        trial = folder / f"{number:04d}"
        trial.mkdir()
        request = {
            "kind": "trial",
            "target": str(ROOT / TARGET),
            "device": "cpu",
            "seed": 0,
            "number": number,
            "phase": PHASE,
            "sides": [{"config": config.to_dict()}],
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
        row = {
            "role": "search",
            "setting": config.label(),
            "batch_size": batch_size,
            "outcome": said[-1].get("outcome") if said else None,
            "wall_s": wall_s,
        }
        trials.append(row)
        print(number, row["setting"], f"{wall_s:.1f} s", file=sys.stderr)
    return {"wall_s": sum(t["wall_s"] for t in trials), "trials": trials}


def show(path: Path) -> None:
    found = json.loads(path.read_text("utf-8"))
    for arm in ARMS:
        wall_s, loop_s = found[arm]["wall_s"], found["naive"]["wall_s"]
        roles = [t["role"] for t in found[arm]["trials"]]
        sets = {t["raced_in"] for t in found[arm]["trials"] if t.get("raced_in")}
        print(
            f"{arm}: {wall_s:.0f} s, {loop_s / wall_s:.1f} times as fast as the loop, "
            f"{roles.count('search')} trials, {len(sets)} sets of races"
        )
    run = found["tune"]
    print(
        f"first trial after {run['first_trial_s']:.0f} s, first race after "
        f"{run['search_s']:.0f} s, {run['tuner_cpu_share']:.1%} of a core, decided "
        f"{sum(run['decided'])} of {len(run['decided'])}, sets {run['sets']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=HERE / "cpu.json")
    parser.add_argument("--show", action="store_true", help="what is recorded")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for arm in () if options.show else ARMS:
        with tempfile.TemporaryDirectory(prefix="tuning-cost-") as scratch:
            folder = Path(scratch) / "run"
            if arm == "naive":
                results[arm] = by_loop(folder)
            else:
                results[arm] = by_autocompile(arm == "tune", folder)
        options.to.write_text(json.dumps(results, indent=1) + "\n")
    show(options.to)


if __name__ == "__main__":
    main()
