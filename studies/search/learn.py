"""Write the prior of the search, ``autocompile/search/prior.json``, from recorded tables.

Main effects of each field on the logarithm of the speed-up, by ridge regression over all tables of
one kind (device, phase, kind of layers), each batch size weighing the same; and the seconds that
each field adds to a trial. What no table has is left out: the search starts there from nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from autocompile.settings.config import CompileConfig  # noqa: E402

SHRINK = 0.3  # as many observations of "no effect" as each field starts with
CONV = ("ppo_cnn", "cnn", "atari", "ppo_breakout")

Row = tuple[str, Any, CompileConfig, float, float]  # kind, cell, config, log speed-up, seconds


def rows_of_dimensions(path: Path) -> list[Row]:
    """A file of studies/dimensions: each setting's call against eager's of the same processes."""
    data = json.loads(path.read_text())
    device = "cuda" if "cuda" in str(path.parent) else "cpu"
    layers = "conv" if data["model"] in CONV else "other"
    phase = "forward" if data["phase"].startswith("forward") else data["phase"]
    times = defaultdict(list)
    for process in data["processes"]:
        number = process["number"] if process["repeats"] is None else process["repeats"]
        if process.get("eager_us") and process.get("call_us"):
            times[number].append(math.log(process["eager_us"] / process["call_us"]))
    found: list[Row] = []
    for setting in data["settings"]:
        config = CompileConfig.from_dict(setting["config"])
        if setting["number"] in times and config.environment == "default":
            cell = (path.stem, setting.get("batch_size"))
            kind = f"{device}/{phase}/{layers}" if phase == "forward" else f"{device}/{phase}"
            log = float(np.median(times[setting["number"]]))
            found.append((kind, cell, config, log, float(setting.get("wall_s") or 0.0)))
    return found


def rows_of_table(path: Path) -> list[Row]:
    """A complete table of this study."""
    data = json.loads(path.read_text())
    found: list[Row] = []
    for row in data["rows"]:
        if row["outcome"] == "ok":
            config = CompileConfig.from_dict(row["config"])
            cell = (path.stem, row["batch_size"])
            found.append((data["kind"], cell, config, row["log_speedup"], row["seconds"]))
    return found


def learned(rows: list[Row]) -> dict[str, Any]:
    """The prior of one kind."""
    names = sorted({name for _, _, config, _, _ in rows for name in config.features})
    column = {name: i for i, name in enumerate(names)}
    count = defaultdict(int)
    for _, cell, _, _, _ in rows:
        count[cell] += 1
    has = np.zeros((len(rows), len(names)))
    for i, (_, _, config, _, _) in enumerate(rows):
        has[i, [column[name] for name in config.features]] = 1.0
    logs = np.array([log for *_, log, _ in rows])
    weight = np.array([10.0 / count[cell] for _, cell, *_ in rows])
    ridge = SHRINK * np.eye(len(names))
    effects = np.linalg.solve(has.T @ (weight[:, None] * has) + ridge, has.T @ (weight * logs))
    seconds = np.array([s for *_, s in rows])
    known = seconds > 0
    with_base = np.hstack([np.ones((known.sum(), 1)), has[known]])
    ridge = 0.5 * np.eye(len(names) + 1)
    costs = np.linalg.solve(with_base.T @ with_base + ridge, with_base.T @ seconds[known])
    return {
        "effects": {n: round(float(e), 3) for n, e in zip(names, effects, strict=True)},
        "seconds": {n: round(max(0.0, float(c)), 1) for n, c in zip(names, costs[1:], strict=True)}
        if known.any()
        else {},
        "base_s": round(max(1.0, float(costs[0])), 1) if known.any() else 2.0,
    }


def learn(paths: list[Path], without: str = "") -> dict[str, Any]:
    """The priors of all kinds, from all tables but those of one model."""
    rows: list[Row] = []
    for path in paths:
        if path.stem != without:
            rows += rows_of_table(path) if "search" in path.parts else rows_of_dimensions(path)
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row[0]].append(row)
        if row[0].count("/") == 2:  # of all kinds of layers, for one that was not recorded
            by_kind[row[0].rpartition("/")[0]].append(row)
    return {kind: learned(own) for kind, own in sorted(by_kind.items())}


def tables() -> list[Path]:
    """Every recorded table."""
    found = sorted((ROOT / "studies/search").glob("*/tables/*.json"))
    older = sorted((ROOT / "studies/dimensions").glob("c*/*.json"))
    return found + [p for p in older if p.stem not in ("pairs", "roofline", "adam_default_heap")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", default="", help="a model whose tables are left out")
    parser.add_argument("--to", type=Path, default=ROOT / "autocompile/search/prior.json")
    options = parser.parse_args()
    priors = learn(tables(), options.without)
    text = json.dumps({"made_by": "studies/search/learn.py", "priors": priors}, indent=1)
    options.to.write_text(text + "\n", encoding="utf-8")
    print(f"{len(priors)} kinds from {len(tables())} tables")
