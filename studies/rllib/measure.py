"""What of a gain is left in an algorithm: ``autocompile verify --in-algorithm``, kept.

    autocompile tune examples/ppo_breakout.py --phase forward_exploration --phase optimizer_step
    autocompile export last -o tuned.json
    python studies/rllib/measure.py breakout tuned.json     (adds a process to cpu.json)
    python studies/rllib/measure.py                         (prints the table)

A process has two algorithms in it, one with the settings of the file and one without, that do
iterations in turns.
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
NAMES = ("breakout", "breakout_remote", "cartpole", "dqn")


def measure(name: str, settings: Path, budget: str) -> dict[str, Any]:
    """What the command found, and the settings that it was about."""
    command = [sys.executable, "-m", "autocompile", "verify", str(settings)]
    command += ["--in-algorithm", "--target", str(HERE / f"{name}.py")]
    command += ["--budget", budget, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    del found["target"]
    return {"settings": json.loads(settings.read_text())["phases"], **found}


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """Each figure over the processes of an algorithm."""
    iterations = sum(len(row["rounds"]) for row in rows)
    print(f"{name}: {len(rows)} processes, {iterations} iterations of each")
    figures = [row["figures"] for row in rows]
    for figure in figures[0]:
        untouched, tuned = (
            median([found[figure][side]["value"] for found in figures])
            for side in ("untouched", "tuned")
        )
        line = f"  {figure:14} untouched {untouched:9.4g}  tuned {tuned:9.4g}"
        if "gain" in figures[0][figure]:
            gains = [found[figure]["gain"]["value"] for found in figures]
            gain = over_sets([math.log(value) for value in gains])
            line += f"  gain {gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}]"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("settings", nargs="?", type=Path, help="of autocompile export")
    parser.add_argument("--budget", default="4m")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    asked = parser.parse_args()
    if asked.settings:
        path = HERE / f"{asked.device}.json"
        known = json.loads(path.read_text())
        row = measure(asked.name, asked.settings, asked.budget)
        known.setdefault(asked.name, []).append(row)
        path.write_text(json.dumps(known) + "\n")
    for device in ("cpu", "cuda"):
        known = json.loads((HERE / f"{device}.json").read_text())
        for name in NAMES:
            if name in known:
                show(f"{name} on {device}", known[name])


if __name__ == "__main__":
    main()
