"""Four compilers that lie, in the place of Inductor: what does each tool recommend?

    python studies/other_tuners/liars.py --device cpu --to studies/other_tuners/cpu/liars.json

``targets/lied_to.py`` has the lies: zeros, gradients of nothing, a segmentation fault, a hang while
compiling. The first two are faster than eager mode. autocompile tunes a training step, AITune,
which is for inference, a forward pass. Each has 240 seconds; a tool that ends by itself with a pick
of eager mode is right.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tools import TARGETS, aitune, part

LIES = ("zeros", "gradients", "segfault", "hang")
NAME, BUDGET_S, LIMIT_S = "lied_to", 60, 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tools", default="autocompile,aitune")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print("\n" + json.dumps(TOOLS[asked.one](asked.device)))
        return
    rows: list[dict[str, Any]] = []
    for lie in LIES:
        for tool in asked.tools.split(","):
            os.environ.update(
                LIAR=lie, AITUNE_CACHE_DIR=tempfile.mkdtemp(prefix="tuners-")
            )
            words = ["--device", asked.device, "--to", str(asked.to), "--one", tool]
            rows.append(
                {"lie": lie, "tool": tool, **part(__file__, *words, seconds=LIMIT_S)}
            )
            print(rows[-1], flush=True)
            asked.to.parent.mkdir(parents=True, exist_ok=True)
            asked.to.write_text(json.dumps(rows, indent=1) + "\n")


def autocompile(device: str) -> dict[str, Any]:
    from autocompile import tune
    from autocompile.settings.searchspace import SearchSpace

    with tempfile.TemporaryDirectory() as folder:
        result = tune(
            TARGETS / f"{NAME}.py",
            phases=("train_step",),
            space=SearchSpace(backends=("inductor",)),
            budget_s=BUDGET_S,
            timeout_s=20,
            device=device,
            run_dir=Path(folder) / "run",
            progress="plain",
        )
    phase = result.report.phases["train_step"]
    best = phase.answer.best
    assert best
    outcomes = [t.outcome.value for t in phase.trials if t.config.backend == "inductor"]
    return {"pick": best.config.backend, "outcomes": sorted(set(outcomes))}


TOOLS: dict[str, Any] = {
    "autocompile": autocompile,
    "aitune": lambda device: aitune(NAME, device),
}

if __name__ == "__main__":
    main()
