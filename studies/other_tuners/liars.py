"""Four compilers that lie, in the place of Inductor: what does each tool recommend?

    python studies/other_tuners/liars.py

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

from tools import TARGETS, aitune, keep, part

LIES = ("zeros", "gradients", "segfault", "hang")
NAME, BUDGET_S, LIMIT_S = "lied_to", 60, 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        found = autocompile() if asked.one == "autocompile" else aitune(NAME)
        print("\n" + json.dumps(found))
        return
    rows: list[dict[str, Any]] = []
    for lie in LIES:
        for tool in ("autocompile", "aitune"):
            with tempfile.TemporaryDirectory() as cache:
                os.environ.update(LIAR=lie, AITUNE_CACHE_DIR=cache)
                told = part(__file__, "--one", tool, seconds=LIMIT_S)
            rows.append({"lie": lie, "tool": tool, **told})
            print(rows[-1], flush=True)
    keep("liars", rows)


def autocompile() -> dict[str, Any]:
    from autocompile import tune
    from autocompile.settings.searchspace import SearchSpace

    with tempfile.TemporaryDirectory() as folder:
        result = tune(
            TARGETS / f"{NAME}.py",
            phases=("train_step",),
            space=SearchSpace(backends=("inductor",)),
            budget_s=BUDGET_S,
            timeout_s=20,
            device="cpu",
            run_dir=Path(folder) / "run",
            progress="plain",
        )
    phase = result.report.phases["train_step"]
    best = phase.answer.best
    assert best
    outcomes = [t.outcome.value for t in phase.trials if t.config.backend == "inductor"]
    return {"pick": best.config.backend, "outcomes": sorted(set(outcomes))}


if __name__ == "__main__":
    main()
