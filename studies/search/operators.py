"""How long does compiling take, by the operators that a call runs in eager mode?

    python studies/search/operators.py    # writes studies/search/operators.json

Operators are counted now, on a CPU; seconds are those of plain ``torch.compile()`` in the recorded
tables. Optimizer steps are left out: their operators work on lists of tensors.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from learn import tables

from autocompile.search.effects import _PER_ROOT_S
from autocompile.trial.model.load import build, import_target
from autocompile.trial.tasks.operators import operators_of

HERE = Path(__file__).resolve().parent
PLAIN = ({}, {"scope": "step"})  # of a training step the whole


def factor(row: dict[str, Any]) -> float:
    """How far the expected seconds are from those of the table."""
    return math.exp(abs(math.log(row["expected_s"] / row["compile_s"])))


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, table in tables("search", "cpu").items():
        phase = table["phase"]
        if phase == "optimizer_step" or name.startswith("ppo"):
            continue
        (plain,) = (row for row in table["rows"] if row["config"] in PLAIN)
        path = str(HERE / "targets" / f"{name}.py")
        target = build(path, import_target(path), None)
        operators = operators_of(target, phase, plain["batch_size"], 0)
        assert operators
        expected_s = round(_PER_ROOT_S * math.sqrt(operators), 2)
        row = {"model": name, "operators": operators, "compile_s": plain["compile_s"]}
        rows.append({**row, "expected_s": expected_s})
        print(rows[-1])
    print(f"{len(rows)} models, at most a factor of {max(map(factor, rows)):.2f} apart")
    text = ",\n".join(f" {json.dumps(row)}" for row in rows)
    (HERE / "operators.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
