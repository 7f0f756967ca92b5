"""How far is what ``autocompile tune`` picks from the best setting that was written by hand?

    python studies/gpu/regret.py gpt2_step --effort normal

For each network one tune, in a process of its own, nothing beside. Then its pick is applied by the
code of ``reference.py``, which shares nothing with autocompile, and timed with eager mode, plain
``torch.compile()`` and the best two settings by hand: each in two fresh processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from networks import MODELS, Model, Spec, settings
from reference import machine, timed

HERE = Path(__file__).resolve().parent
COMPILED = {"model": "model", "regional": "blocks", "step": "step"}  # of a scope
NOT_APPLIED = ("precision", "autocast", "guards", "environment")


def spec_of(config: dict[str, Any], phase: str) -> Spec:
    """A setting of a report as this study applies it.

    Raises:
        ValueError: it has something that is not applied here.
    """
    for field in NOT_APPLIED:
        if config.get(field) not in ("default", "none", "all", None):
            raise ValueError(f"{field}={config[field]} is not applied here")
    arguments: dict[str, Any] = {}
    if config["backend"] != "inductor":
        arguments["backend"] = config["backend"]
    if config["mode"] != "default":
        arguments["mode"] = config["mode"]
    if config["options"]:
        arguments["options"] = config["options"]
    if config["dynamic"] is not None:
        arguments["dynamic"] = config["dynamic"]
    compiled = "step" if phase == "optimizer_step" else COMPILED[config["scope"]]
    if config["backend"] == "eager":
        compiled, arguments = "", {}
    return Spec(
        "pick",
        compiled,
        arguments,
        optimizer=config["optimizer"].replace("default", "target"),
        memory_format=config["memory_format"].replace("default", ""),
        freezing=config["freezing"],
    )


def tuned(model: Model, effort: str) -> dict[str, Any]:
    """The answer of ``autocompile tune``, as a user runs it."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        command = [sys.executable, "-m", "autocompile", "tune", str(model.path)]
        command += ["--phase", model.phase, "--device", "cuda", "--effort", effort]
        command += ["--run-dir", str(run)]
        began = time.monotonic()
        subprocess.run(command, check=True, env=os.environ | model.environment)
        wall_s = round(time.monotonic() - began, 1)
        report = json.loads((run / "report.json").read_text())
    answer = report["phases"][model.phase]["answer"]
    best = answer["best"]
    return {
        "effort": effort,
        "wall_s": wall_s,
        "word": answer["confidence"],
        "config": best["config"],
        "speedup": best["speedup"],
        "call_s": best["call_s"],
    }


def best_by_hand(model: Model, count: int = 2) -> list[str]:
    """The fastest settings of the recorded reference; without one, all."""
    recorded = json.loads((HERE / "h100.json").read_text())
    if model.name not in recorded:
        return [spec.name for spec in settings(model)]
    rows = recorded[model.name]["rows"]
    ms = ms_by_setting([row for row in rows if "compiled_ms" in row])
    return sorted(ms, key=lambda name: ms[name])[:count]


def ms_by_setting(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The median over processes of the median block."""
    times = defaultdict(list)
    for row in rows:
        times[row["setting"]].append(median(row["compiled_ms"]))
    return {name: round(median(found), 5) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", help="names, with commas")
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--to", type=Path, default=HERE / "picks.json")
    options = parser.parse_args()
    facts = machine()
    for name in options.models.split(","):
        model = MODELS[name]
        tune = tuned(model, options.effort)
        names = ["eager", "compile", *best_by_hand(model)]
        specs = [spec for spec in settings(model) if spec.name in names]
        specs.append(spec_of(tune["config"], model.phase))
        rows = [row for row in timed(model, specs, 2) if "compiled_ms" in row]
        ms = ms_by_setting(rows)
        found = {"machine": facts, "tune": tune, "ms": ms}
        found["blocks_ms"] = [[row["setting"], row["compiled_ms"]] for row in rows]
        every = json.loads(options.to.read_text()) if options.to.exists() else {}
        every[name] = found
        lines = (f" {json.dumps(k)}: {json.dumps(v)}" for k, v in every.items())
        options.to.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(name, tune, ms, flush=True)


if __name__ == "__main__":
    main()
