"""Write the prior of the search, ``autocompile/search/prior.json``, from recorded tables.

Main effects of each field on the logarithm of the speed-up, by ridge regression over all tables of
one kind (device, phase, kind of layers), each batch size weighing the same; and the seconds that
each field adds to a trial. What no table has is left out: the search starts there from nothing.

Of training steps on a GPU, whose tables are all of real models, a field takes a share of what plain
``torch.compile()`` of the same network takes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from autocompile.search.effects import costs_of  # noqa: E402
from autocompile.settings.config import CompileConfig  # noqa: E402

SHRINK = 0.3  # as many observations of "no effect" as each field starts with
MAIN = ("inductor", "inductor triton.cudagraphs=True", "cudagraphs")
STEP = "cuda/train_step"  # every table of it is of a real model
OF_TRIAL_S = 4.0  # seconds of a trial on a GPU beside its compile: start, check, blocks
CONV = ("ppo_cnn", "cnn", "atari", "ppo_breakout")

# kind, cell, config, log speed-up (None where it was not timed), seconds
Row = tuple[str, Any, CompileConfig, float | None, float]
Ratio = tuple[
    str, CompileConfig, float
]  # kind, config, seconds of a compile over plain's


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
        config = CompileConfig.from_dict(setting["config"], data["phase"])
        if setting["number"] in times and config.environment == "default":
            cell = (path.stem, setting.get("batch_size"))
            kind = (
                f"{device}/{phase}/{layers}"
                if phase == "forward"
                else f"{device}/{phase}"
            )
            log = float(np.median(times[setting["number"]]))
            found.append((kind, cell, config, log, float(setting.get("wall_s") or 0.0)))
    return found


def rows_of_table(path: Path) -> list[Row]:
    """A complete table of this study."""
    data = json.loads(path.read_text())
    found: list[Row] = []
    for row in data["rows"]:
        if row["outcome"] == "ok":
            config = CompileConfig.from_dict(row["config"], data["phase"])
            cell = (path.stem, row["batch_size"])
            found.append(
                (data["kind"], cell, config, row["log_speedup"], row["seconds"])
            )
    return found


def config_of(spec: dict[str, Any], phase: str) -> CompileConfig:
    """A setting of studies/gpu as autocompile names it."""
    compiled, arguments = spec["compiled"], dict(spec["arguments"])
    scope = {"blocks": "regional", "step": "step"}.get(compiled, "model")
    if not compiled:
        arguments = {"backend": "eager"}
    if phase == "optimizer_step":
        scope = "model"  # here the step is all that there is
    return CompileConfig(
        **arguments,
        scope=scope,
        optimizer={"target": "default"}.get(spec["optimizer"], spec["optimizer"]),
        memory_format=spec["memory_format"] or "default",
        freezing=spec["freezing"],
    )


def rows_of_reference(path: Path) -> list[Row]:
    """A file of studies/gpu: a setting's own time against eager's of all processes.

    Eager mode is bound by the CPU there and differs between processes. What was cut off tells its
    seconds only.
    """
    data = json.loads(path.read_text())
    kind = f"cuda/{data['phase']}"
    if data["phase"] == "forward":
        kind += "/conv" if data["has_convolutions"] else "/other"
    eager = np.median([t for row in data["rows"] for t in row.get("eager_ms", ())])
    times, seconds = defaultdict(list), {}
    for row in data["rows"]:
        config = config_of(row["spec"], data["phase"])
        if "compiled_ms" in row:
            times[config].append(math.log(eager / np.median(row["compiled_ms"])))
        if row["process"] == 0:
            taken = (
                row["compile_s"]
                if "compile_s" in row
                else row["wall_s"] - row.get("held_s", 0)
            )
            seconds[config] = float(taken) + OF_TRIAL_S
    return [
        (
            kind,
            (path.stem, None),
            c,
            float(np.median(times[c])) if times[c] else None,
            seconds[c],
        )
        for c in seconds
    ]


def of_precisions(paths: list[Path], without: str = "") -> dict[str, float]:
    """What TF32 and bfloat16 bring, of studies/gpu/precision: each side against float32's.

    Of the same mode, since modes have effects of their own.
    """
    logs = defaultdict(list)
    for path in paths:
        if path.stem == without:
            continue
        rows = json.loads(path.read_text())["rows"]
        ms = {(row["mode"], row["precision"]): np.median(row["ms"]) for row in rows}
        for (mode, number), own in ms.items():
            kind = "eager" if mode == "off" else "compiled"
            name = {"tf32": "precision=high", "bfloat16": "autocast=bfloat16"}.get(
                number
            )
            if name:
                logs[f"{name} {kind}"].append(math.log(ms[mode, "float32"] / own))
    return {
        n: round(float(sum(v) / (len(v) + SHRINK)), 3) for n, v in sorted(logs.items())
    }


def ratios(path: Path) -> list[Ratio]:
    """What each setting's cold compile took, in compiles of plain ``torch.compile()``."""
    data = json.loads(path.read_text())
    found: list[tuple[Any, str, CompileConfig, float]] = []
    if "kind" in data:  # a table of this study
        for row in data["rows"]:
            if row.get("compile_s"):
                config = CompileConfig.from_dict(row["config"])
                found.append(
                    (row["batch_size"], data["kind"], config, row["compile_s"])
                )
    elif "rows" in data:
        found = [
            (None, kind, c, s - OF_TRIAL_S)
            for kind, _, c, _, s in rows_of_reference(path)
        ]
    plain = {cell: s for cell, _, config, s in found if config == CompileConfig()}
    return [
        (kind, config, s / plain[cell])
        for cell, kind, config, s in found
        if not config.is_eager and plain.get(cell)
    ]


def over_plain(found: list[Ratio]) -> dict[str, float]:
    """What each field adds, by ridge regression around ``inductor`` being 1.

    By least absolute deviations (weights that are computed anew): a network whose plain compile is
    short makes ratios of ten.
    """
    names = sorted({name for _, config, _ in found for name in costs_of(config)})
    column = {name: i for i, name in enumerate(names)}
    has = np.zeros((len(found), len(names)))
    for i, (_, config, _) in enumerate(found):
        has[i, [column[name] for name in costs_of(config)]] = 1.0
    start = np.array([1.0 if " " not in n and "=" not in n else 0.0 for n in names])
    rest = np.array([ratio for *_, ratio in found]) - has @ start
    has = has * (np.array(names) != "inductor")  # 1 by what it is
    ridge, weight = SHRINK * np.eye(len(names)), np.ones(len(found))
    for _ in range(30):
        added = np.linalg.solve(
            has.T @ (weight[:, None] * has) + ridge, has.T @ (weight * rest)
        )
        weight = 0.3 / np.maximum(0.05, np.abs(rest - has @ added))
    return {n: round(float(a), 2) for n, a in zip(names, start + added, strict=True)}


def learned(rows: list[Row]) -> dict[str, Any]:
    """The prior of one kind.

    On a GPU networks differ by up to ten in what compiling and CUDA graphs bring; so each table has
    deviations of its own in these, and other fields are compared within a table.
    """
    names = sorted({name for _, _, config, _, _ in rows for name in config.features})
    column = {name: i for i, name in enumerate(names)}
    count = defaultdict(int)
    for _, cell, _, _, _ in rows:
        count[cell] += 1
    has = np.zeros((len(rows), len(names)))
    for i, (_, _, config, _, _) in enumerate(rows):
        has[i, [column[name] for name in config.features]] = 1.0
    own = (
        sorted({cell for _, cell, *_ in rows}, key=str)
        if rows[0][0].startswith("cuda")
        else []
    )
    for cell in own:
        is_here = np.array([[c == cell] for _, c, *_ in rows])
        of_main = [column[name] for name in names if name in MAIN]
        has = np.hstack([has, has[:, of_main] * is_here])
    logs = np.array([log or 0.0 for *_, log, _ in rows])
    is_timed = [log is not None for *_, log, _ in rows]
    weight = np.array([10.0 / count[cell] for _, cell, *_ in rows]) * is_timed
    ridge = SHRINK * np.diag([1.0] * len(names) + [2.0] * (has.shape[1] - len(names)))
    effects = np.linalg.solve(
        has.T @ (weight[:, None] * has) + ridge, has.T @ (weight * logs)
    )
    effects, has = effects[: len(names)], has[:, : len(names)]
    seconds = np.array([s for *_, s in rows])
    known = seconds > 0
    with_base = np.hstack([np.ones((known.sum(), 1)), has[known]])
    ridge = 0.5 * np.eye(len(names) + 1)
    costs = np.linalg.solve(
        with_base.T @ with_base + ridge, with_base.T @ seconds[known]
    )
    return {
        "effects": {n: round(float(e), 3) for n, e in zip(names, effects, strict=True)},
        "seconds": {
            n: round(max(0.0, float(c)), 1)
            for n, c in zip(names, costs[1:], strict=True)
        }
        if known.any()
        else {},
        "base_s": round(max(1.0, float(costs[0])), 1) if known.any() else 2.0,
    }


def reader_of(path: Path) -> Callable[[Path], list[Row]]:
    if path.parent.name == "h100":
        return rows_of_reference
    return rows_of_table if path.parent.name == "tables" else rows_of_dimensions


def learn_ratios(paths: list[Path], without: str = "") -> dict[str, dict[str, float]]:
    """By kind, what each field takes as a share of plain ``torch.compile()``."""
    by_kind = defaultdict(list)
    for path in paths:
        for row in ratios(path) if path.stem != without else ():
            by_kind[row[0]].append(row)
            if row[0].count("/") == 2:
                by_kind[row[0].rpartition("/")[0]].append(row)
    return {kind: over_plain(own) for kind, own in sorted(by_kind.items())}


def by_size(paths: list[Path], ratios: dict[str, float]) -> dict[str, Any]:
    """Seconds of a kind of which every table is of a real model.

    Compiles of these differ by how large the model is: what a field takes is a share of plain
    ``torch.compile()``, whose own seconds the search then learns.
    """
    plain = []
    for path in paths:
        rows = json.loads(path.read_text())["rows"]
        plain += [
            r["compile_s"]
            for r in rows
            if r["setting"] == "compile" and r.get("is_cold")
        ][:1]
    plain_s = float(np.median(plain))
    return {
        "seconds": {
            n: round(max(0.0, ratio * plain_s), 1) for n, ratio in ratios.items()
        },
        "base_s": OF_TRIAL_S,
    }


def learn(paths: list[Path], without: str = "") -> dict[str, Any]:
    """The priors of all kinds, from all tables but those of one model."""
    rows: list[Row] = []
    for path in paths:
        if path.stem != without:
            rows += reader_of(path)(path)
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row[0]].append(row)
        if (
            row[0].count("/") == 2
        ):  # of all kinds of layers, for one that was not recorded
            by_kind[row[0].rpartition("/")[0]].append(row)
    found = {kind: learned(own) for kind, own in sorted(by_kind.items())}
    real = [
        path for path in paths if path.stem != without and path.stem.endswith("_step")
    ]
    found[STEP] |= by_size(real, learn_ratios(paths, without)[STEP])
    precisions = sorted((ROOT / "studies/gpu/precision").glob("*.json"))
    found[STEP]["effects"] |= of_precisions(precisions, without)
    return found


def tables() -> list[Path]:
    """Every recorded table."""
    found = sorted((ROOT / "studies/search").glob("*/tables/*.json"))
    older = sorted((ROOT / "studies/dimensions").glob("c*/*.json"))
    found += sorted((ROOT / "studies/gpu/h100").glob("*.json"))
    return found + [path for path in older if path.stem != "pairs"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--without", default="", help="a model whose tables are left out"
    )
    parser.add_argument(
        "--to", type=Path, default=ROOT / "autocompile/search/prior.json"
    )
    options = parser.parse_args()
    priors = learn(tables(), options.without)
    made = {"made_by": "studies/search/learn.py", "priors": priors}
    text = json.dumps(made, indent=1)
    options.to.write_text(text + "\n", encoding="utf-8")
    print(f"{len(priors)} kinds from {len(tables())} tables")
