"""Are the picks of a suite as fast as the best of six settings that are written by hand?

    autocompile suite studies/suite_picks/four_models.toml --budget 13m
    python studies/suite_picks/by_hand.py SUITE.JSON --to studies/suite_picks/two_cores.json

Each model of the suite has a process of its own, which keeps freed memory. It compiles the six
settings by ``torch.compile``, applies the pick, and times all in turns: 20 rounds of at least 0.2 s
each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS, ROUND_S = 20, 0.2
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "268435456",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
}
BY_HAND: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "eager, channels_last": None,
    "compile()": {},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "frozen weights": {"options": {"freezing": True}},
    "onnxrt": {"backend": "onnxrt"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", type=Path, help="suite.json of the suite's folder")
    parser.add_argument("--to", type=Path, default=Path("by_hand.json"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    suite = json.loads(asked.suite.read_text())
    rows = {row["target"]: row for row in suite["rows"] if row["best"]}
    if asked.one:
        print("\n" + json.dumps(timed(rows[asked.one])))
        return
    names = ("torch", "python", "cpu", "cores")
    machine = {name: suite["environment"][name] for name in names}
    models: dict[str, Any] = {}
    for target, row in rows.items():
        command = [sys.executable, __file__, str(asked.suite), "--one", target]
        environment = {**os.environ, **KEEP_MEMORY}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=environment, check=True
        )
        ms = json.loads(done.stdout.splitlines()[-1])
        models[target] = {"pick": row["best"]["config"], "ms": ms}
        print(target, ms, flush=True)
    found = {"machine": machine, "suite_s": suite["wall_s"], "models": models}
    asked.to.write_text(json.dumps(found, indent=1) + "\n")


def timed(row: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a forward pass with each setting."""
    import torch

    from autocompile.runtime.applying import apply_config
    from autocompile.runtime.compiling import register_backend_of
    from autocompile.settings.config import CompileConfig
    from autocompile.trial.model.library import build_library, import_library
    from autocompile.trial.model.target import call_model

    register_backend_of("onnxrt")
    library = vars(import_library(row["target"]))["library"]
    torch.manual_seed(0)
    target = build_library(row["target"], library)
    inputs = target.make_inputs(row["batch_size"])
    state = target.model.state_dict()

    def model() -> Any:
        torch._dynamo.reset()
        made = build_library(row["target"], library).model
        made.load_state_dict(state)
        return made.eval()

    sides: dict[str, Any] = {}
    for name, arguments in BY_HAND.items():
        made = model()
        if "channels_last" in name:
            made = made.to(memory_format=torch.channels_last)
        sides[name] = made if arguments is None else torch.compile(made, **arguments)
    sides["pick"] = model()
    config = CompileConfig.from_dict(row["best"]["config"])
    apply_config(sides["pick"], "forward", config)
    with torch.no_grad():
        return in_turns(
            {n: lambda s=s: call_model(s, inputs) for n, s in sides.items()}
        )


def in_turns(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median of the rounds, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < ROUND_S or not count:
                call()
                count += 1
            times[name].append((time.perf_counter() - began) / count * 1e3)
    return {name: round(statistics.median(each), 3) for name, each in times.items()}


if __name__ == "__main__":
    main()
