"""How long does compiling take, by the operators that a call runs in eager mode?

    python studies/search/operators.py    # writes studies/search/cpu/operators.json

Operators are counted now, on a CPU; seconds are those of plain ``torch.compile()`` in the recorded
tables. Optimizer steps are left out: their operators work on lists of tensors.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import models

from autocompile.search.effects import _PER_ROOT_S
from autocompile.settings.config import DEFAULT_INDUCTOR, CompileConfig
from autocompile.settings.phases import OPTIMIZER_STEP
from autocompile.trial.model.load import build, import_target
from autocompile.trial.tasks.operators import operators_of

CPU = Path(__file__).parent / "cpu"


def seconds_of(name: str) -> float:
    """What plain torch.compile() took to compile in the table of a model."""
    table = json.loads((CPU / "tables" / f"{name}.json").read_text())
    for row in table["rows"]:
        config = {**row["config"], "options": tuple(row["config"]["options"].items())}
        config["scope"] = "model" if config["scope"] == "full" else config["scope"]
        known = {n: config[n] for n in vars(DEFAULT_INDUCTOR) if n in config}
        if CompileConfig(**known) == DEFAULT_INDUCTOR:
            return float(row["step_s"]["compile"])
    raise KeyError(name)


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, model in models.MODELS.items():
        if model.phase == OPTIMIZER_STEP or name.startswith("ppo"):
            continue
        target = build(model.target, import_target(model.target), None)
        size = model.batch_sizes[0] or 1
        operators = operators_of(target, model.phase, size, 0)
        assert operators
        took_s, expected_s = seconds_of(name), _PER_ROOT_S * math.sqrt(operators)
        rows.append(
            {
                "model": name,
                "phase": model.phase,
                "operators": operators,
                "compile_s": took_s,
                "expected_s": round(expected_s, 2),
            }
        )
        print(rows[-1])
    apart = [
        max(r["compile_s"], r["expected_s"]) / min(r["compile_s"], r["expected_s"])
        for r in rows
    ]
    print(f"{len(rows)} models, at most a factor of {max(apart):.2f} apart")
    (CPU / "operators.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
