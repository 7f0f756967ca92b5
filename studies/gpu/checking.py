"""How long does a trial take to be verified, by kind of setting?

    python studies/gpu/checking.py studies/search/cpu/tables/*.json
    python studies/gpu/checking.py RUN_FOLDER ... [--to FILE]

Reads the seconds of each step of trials that ended well, of the search only, from tables of
``studies/search`` and from folders of runs.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any


def kind_of(config: dict[str, Any]) -> str:
    """What decides how a setting is verified."""
    options, backend = config.get("options") or {}, config["backend"]
    named = {
        "whole step": config.get("scope") == "step",
        "frozen": config.get("freezing"),
        "cpp_wrapper": options.get("cpp_wrapper"),
        "max-autotune": "autotune" in config.get("mode", "")
        or "max_autotune" in options,
        "baked": options.get("weights") == "baked",
    }
    return " ".join([backend, *(name for name, is_so in named.items() if is_so)])


def trials_of(path: Path) -> Iterator[dict[str, Any]]:
    """The trials of a table or of a run."""
    if path.is_file():
        yield from json.loads(path.read_text())["rows"]
        return
    for result in sorted((path / "trials").glob("*/result.json")):
        trial = json.loads(result.read_text())
        if trial.get("role") == "search" and trial.get("duplicate_of") is None:
            yield trial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    found = defaultdict(list)
    for path in options.paths:
        for trial in trials_of(path):
            if trial["outcome"] == "ok":
                steps = trial["step_s"]
                row = [
                    steps.get(name, 0.0) for name in ("compile", "verify", "measure")
                ]
                found[kind_of(trial["config"])].append(row)
    table = {}
    print(
        f"{'':32} trials  compile  verify  measure  verify/compile  longer than compile"
    )
    for kind, rows in sorted(found.items()):
        seconds = [round(median(column), 2) for column in zip(*rows, strict=True)]
        ratio = (
            round(median(v / c for c, v, _ in rows if c), 2) if kind != "eager" else 0.0
        )
        longer = sum(v > c for c, v, _ in rows)
        table[kind] = {
            "trials": len(rows),
            "seconds": seconds,
            "ratio": ratio,
            "longer": longer,
        }
        shown = "".join(f"{s:9.2f}" for s in seconds)
        print(f"{kind:32} {len(rows):6} {shown} {ratio:9.2f} {longer:9}")
    if options.to:
        options.to.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
