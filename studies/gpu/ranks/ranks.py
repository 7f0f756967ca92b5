"""Tune steps of two ranks, and time the picks beside six settings that are written by hand.

    python studies/gpu/ranks/ranks.py --to FOLDER

needs two GPUs, or tries the script on a CPU with STUDY_SMALL in the environment. For each network it
runs ``autocompile tune --ranks 2`` and then ``by_hand.py`` under torchrun, and writes both
into FOLDER and one line to the screen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
TARGETS = HERE.parent / "targets"
NETWORKS = {
    "gpt2_124m_step": "ddp",
    "resnet_step": "ddp",
    "robot_step": "ddp",
    "llama_350m_step": "fsdp2",
}
RANKS = 2


def tuned(name: str, strategy: str, budget: str, folder: Path) -> dict[str, Any]:
    """The answer of ``autocompile tune`` for the step of a network."""
    run = folder / name
    command = [sys.executable, "-m", "autocompile", "tune"]
    command += [str(TARGETS / f"{name}.py"), "--ranks", str(RANKS)]
    command += ["--strategy", strategy, "--phase", "train_step"]
    subprocess.run([*command, "--budget", budget, "--run-dir", str(run)], check=False)
    report = json.loads((run / "report.json").read_text())
    answer: dict[str, Any] = report["phases"]["train_step"]["answer"]
    return answer


def by_hand(name: str, strategy: str, folder: Path) -> dict[str, float]:
    """Milliseconds of a step with each setting that is written by hand."""
    result = folder / f"{name}_by_hand.json"
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += ["--nproc-per-node", str(RANKS), str(HERE / "by_hand.py")]
    command += [str(TARGETS / f"{name}.py"), "--strategy", strategy]
    subprocess.run([*command, "--to", str(result)], check=False)
    rows = json.loads(result.read_text())["rows"]
    return {row["setting"]: median(row["ms"]) for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--to", type=Path, default=Path("ranks"))
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for name in options.networks.split(","):
        strategy = NETWORKS[name]
        answer = tuned(name, strategy, options.budget, options.to)
        times = by_hand(name, strategy, options.to)
        setting, best = min(times.items(), key=lambda item: item[1])
        pick = answer["best"]
        if pick is None:
            print(f"{name}: no answer, {answer['reason']}", flush=True)
            continue
        took, gain = 1e3 * pick["call_s"], pick["speedup"]["value"]
        print(
            f"{name}: {took:.2f} ms, {gain:.2f}x, {answer['confidence']}; by hand "
            f"{setting} {best:.2f} ms, eager {times['eager']:.2f} ms; behind {took / best - 1:.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
