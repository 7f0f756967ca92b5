"""Are the picks of a suite as fast as the best of six settings that are timed by hand?

    python studies/seeds/by_hand.py studies/seeds/cpu/four_models.json Electra ViT UNet VQModel

Of each model its row for a forward pass: the pick and six settings, each compiled here by
``torch.compile``, in turns in one process with memory kept, 20 rounds of at least 0.2 s each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROUNDS, ROUND_S = 20, 0.2
KEPT = {"MALLOC_TRIM_THRESHOLD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "33554432"}
HAND: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "eager, channels_last": {"backend": "eager", "memory_format": "channels_last"},
    "compile()": {},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "frozen weights": {"options": {"freezing": True}},
    "onnxrt": {"backend": "onnxrt"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    rows = json.loads(asked.suite.read_text())["rows"]
    forward = {r["target"]: r for r in rows if r["phase"] == "forward" and r["best"]}
    if asked.one:
        print("\n" + json.dumps(timed(forward[asked.one])))
        return
    found = {}
    for name in asked.models:
        target = next(t for t in forward if name in t)
        command = [sys.executable, __file__, str(asked.suite), name, "--one", target]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **KEPT},
            check=True,
        )
        found[target] = ms = json.loads(done.stdout.strip().splitlines()[-1])
        best = min((how for how in ms if how != "pick"), key=lambda how: ms[how])
        print(
            f"{target}: pick {ms['pick']:.2f} ms, best by hand {best} {ms[best]:.2f} ms",
            flush=True,
        )
    if asked.to:
        asked.to.write_text(json.dumps(found, indent=1) + "\n")


def timed(row: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a call by setting."""
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
        made = build_library(row["target"], library).model
        made.load_state_dict(state)
        return made.eval()

    def by_hand(how: dict[str, Any]) -> Any:
        torch._dynamo.reset()
        made, arguments = model(), dict(how)
        if arguments.pop("memory_format", None):
            made = made.to(memory_format=torch.channels_last)
        return (
            made
            if arguments == {"backend": "eager"}
            else torch.compile(made, **arguments)
        )

    sides = {name: by_hand(how) for name, how in HAND.items()}
    pick = model()
    torch._dynamo.reset()
    apply_config(pick, "forward", CompileConfig.from_dict(row["best"]["config"]))
    sides["pick"] = pick
    times: dict[str, list[float]] = {}
    with torch.no_grad():
        for name, side in [*sides.items()]:
            try:
                for _ in range(3):
                    call_model(side, inputs)
            except Exception as error:
                print(name, type(error).__name__, str(error)[:100], file=sys.stderr)
                del sides[name]
        for _ in range(ROUNDS):
            for name, side in sides.items():
                call_model(side, inputs)
                began, calls = time.perf_counter(), 0
                while time.perf_counter() - began < ROUND_S or not calls:
                    call_model(side, inputs)
                    calls += 1
                times.setdefault(name, []).append(
                    (time.perf_counter() - began) / calls * 1e3
                )
    return {name: round(statistics.median(each), 3) for name, each in times.items()}


if __name__ == "__main__":
    main()
