"""What of a gain is left in an algorithm: ``autocompile verify --in-algorithm``, kept.

    autocompile tune examples/ppo_breakout.py --phase forward_exploration --phase optimizer_step
    autocompile export last -o tuned.json
    python studies/rllib/measure.py breakout tuned.json --budget 4m     (adds a row; repeat it)
    python studies/rllib/measure.py                                     (prints the table)

One row is one process with two algorithms in it, one with the settings of the file and one without,
that did iterations in turns. Written to ``<device>/<name>.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from autocompile.estimate.intervals import median, over_sets

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "truth"))
from store import append, commit, load  # noqa: E402


def measure(name: str, settings: str, budget: str) -> dict[str, Any]:
    """A row: what the command found, and the settings that it was about."""
    command = [
        sys.executable,
        "-m",
        "autocompile",
        "verify",
        settings,
        "--in-algorithm",
    ]
    command += ["--target", str(HERE / f"{name}.py"), "--budget", budget, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    found = json.loads(done.stdout)
    del found["target"]
    tuned = json.loads(Path(settings).read_text())
    return {"commit": commit(), "settings": tuned["phases"], **found}


def show(path: Path) -> None:
    """Each figure over the rows of a file: a process is a sample."""
    figures = [row["figures"] for row in load(path)]
    iterations = sum(len(row["rounds"]) for row in load(path))
    print(
        f"{path.relative_to(HERE)}: {len(figures)} processes, {iterations} iterations of each"
    )
    for name in figures[0]:
        sides = [
            median([f[name][side]["value"] for f in figures])
            for side in ("untouched", "tuned")
        ]
        line = f"  {name:14} untouched {sides[0]:9.4g}  tuned {sides[1]:9.4g}"
        if "gain" in figures[0][name]:
            gain = over_sets([math.log(f[name]["gain"]["value"]) for f in figures])
            line += f"  gain {gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}]"
        print(line)


def main() -> None:
    """Measure one row, or show all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "name", nargs="?", choices=("breakout", "breakout_remote", "cartpole", "dqn")
    )
    parser.add_argument("settings", nargs="?", help="a file of autocompile export -o")
    parser.add_argument("--budget", default="4m")
    parser.add_argument("--device", default="cpu", help="that the settings are about")
    asked = parser.parse_args()
    if asked.settings:
        path = HERE / asked.device / f"{asked.name}.json"
        append(path, asked.device, measure(asked.name, asked.settings, asked.budget))
    for path in sorted(HERE.glob("*/*.json")):
        if path.stem != "training":
            show(path)


if __name__ == "__main__":
    main()
