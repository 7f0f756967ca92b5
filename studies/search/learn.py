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
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
STUDIES = ROOT / "studies"
sys.path.insert(0, str(ROOT))

from autocompile.search.effects import costs_of  # noqa: E402
from autocompile.settings.config import CompileConfig  # noqa: E402

SHRINK = 0.3  # as many observations of "no effect" as each field starts with
MAIN = ("inductor", "inductor triton.cudagraphs=True", "cudagraphs")
STEP = "cuda/train_step"  # every table of it is of a real model
OF_TRIAL_S = 4.0  # seconds of a trial on a GPU beside its compile: start, check, blocks


class Row(NamedTuple):
    """One setting of a table.

    Attributes:
        cell: rows of one cell were timed beside one another.
        log: the logarithm of the speed-up; None where it was not timed.
        seconds: of a trial; None where it failed, and tells no more than its compile.
    """

    model: str
    kind: str
    cell: Any
    config: CompileConfig
    log: float | None
    seconds: float | None
    compile_s: float | None


def tables(folder: str, device: str) -> dict[str, dict[str, Any]]:
    """The recorded tables of ``search`` or ``dimensions``, by model."""
    found: dict[str, Any] = json.loads(
        (STUDIES / folder / f"{device}.json").read_text()
    )
    return found["tables"]


def rows_of_table(model: str, table: dict[str, Any]) -> list[Row]:
    found = []
    for row in table["rows"]:
        config = CompileConfig.from_dict(row["config"], table["phase"])
        seconds = row["seconds"] if row["outcome"] == "ok" else None
        cell = (model, row["batch_size"])
        log, compile_s = row.get("log_speedup"), row.get("compile_s")
        found.append(Row(model, table["kind"], cell, config, log, seconds, compile_s))
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


def rows_by_hand(model: str, data: dict[str, Any]) -> list[Row]:
    """A network of studies/gpu/h100.json: a setting's own time against eager's of all processes.

    Eager mode is bound by the CPU there and differs between processes. What was cut off tells its
    seconds only.
    """
    kind = f"cuda/{data['phase']}"
    if data["phase"] == "forward":
        kind += "/conv" if data["has_convolutions"] else "/other"
    eager = np.median([t for row in data["rows"] for t in row.get("eager_ms", ())])
    logs, compile_s = defaultdict(list), {}
    for row in data["rows"]:
        config = config_of(row["spec"], data["phase"])
        if "compiled_ms" in row:
            logs[config].append(math.log(eager / np.median(row["compiled_ms"])))
        if row["process"] == 0:
            has_ended = "compile_s" in row
            until_cut_s = row["wall_s"] - row.get("held_s", 0)
            compile_s[config] = float(row["compile_s"] if has_ended else until_cut_s)
    found = []
    for config, s in compile_s.items():
        log = float(np.median(logs[config])) if logs[config] else None
        found.append(Row(model, kind, (model, None), config, log, s + OF_TRIAL_S, s))
    return found


def recorded() -> list[Row]:
    """The rows of every table."""
    found: list[Row] = []
    for device in ("cpu", "cuda"):
        for model, table in tables("search", device).items():
            found += rows_of_table(model, table)
    for model, by_hand in json.loads((STUDIES / "gpu/h100.json").read_text()).items():
        found += rows_by_hand(model, by_hand)
    for device in ("cpu", "cuda"):
        for model, table in tables("dimensions", device).items():
            found += rows_of_table(model, table)
    return found


def of_precisions(without: str) -> dict[str, float]:
    """What TF32 and bfloat16 bring, of studies/gpu/precision: each side against float32's.

    Of the same mode, since modes have effects of their own.
    """
    names = {"tf32": "precision=high", "bfloat16": "autocast=bfloat16"}
    logs = defaultdict(list)
    networks = json.loads((STUDIES / "gpu/precision/h200.json").read_text())
    for model, found in networks.items():
        if model == without:
            continue
        rows = found["rows"]
        ms = {(row["mode"], row["precision"]): np.median(row["ms"]) for row in rows}
        for (mode, precision), own in ms.items():
            if precision in names:
                kind = "eager" if mode == "off" else "compiled"
                log = math.log(ms[mode, "float32"] / own)
                logs[f"{names[precision]} {kind}"].append(log)
    means = {n: sum(v) / (len(v) + SHRINK) for n, v in sorted(logs.items())}
    return {name: round(float(mean), 3) for name, mean in means.items()}


def has_field(names: list[str], each: Iterable[Iterable[str]]) -> Any:
    """A row for each setting, with 1 in the column of each field that it has."""
    column = {name: i for i, name in enumerate(names)}
    each = list(each)
    has = np.zeros((len(each), len(names)))
    for i, fields in enumerate(each):
        has[i, [column[name] for name in fields]] = 1.0
    return has


def over_plain(rows: list[Row]) -> dict[str, float]:
    """What each field adds to a compile, in compiles of plain ``torch.compile()``, which is 1.

    By least absolute deviations (weights that are computed anew): a network whose plain compile is
    short makes ratios of ten.
    """
    plain = {r.cell: r.compile_s for r in rows if r.config == CompileConfig()}
    found = [
        (costs_of(r.config), r.compile_s / plain[r.cell])
        for r in rows
        if r.compile_s and not r.config.is_eager and plain.get(r.cell)
    ]
    names = sorted({name for fields, _ in found for name in fields})
    has = has_field(names, (fields for fields, _ in found))
    start = np.array([1.0 if " " not in n and "=" not in n else 0.0 for n in names])
    rest = np.array([ratio for _, ratio in found]) - has @ start
    has = has * (np.array(names) != "inductor")  # 1 by what it is
    weight = np.ones(len(found))
    for _ in range(30):
        added = ridge(has, weight, rest, SHRINK * np.ones(len(names)))
        weight = 0.3 / np.maximum(0.05, np.abs(rest - has @ added))
    return {n: round(float(a), 2) for n, a in zip(names, start + added, strict=True)}


def ridge(has: Any, weight: Any, seen: Any, shrink: Any) -> Any:
    left = has.T @ (weight[:, None] * has) + np.diag(shrink)
    return np.linalg.solve(left, has.T @ (weight * seen))


def learned(rows: list[Row]) -> dict[str, Any]:
    """The prior of one kind.

    On a GPU networks differ by up to ten in what compiling and CUDA graphs bring; so each table has
    deviations of its own in these, and other fields are compared within a table.
    """
    rows = [row for row in rows if row.seconds is not None]
    names = sorted({name for row in rows for name in row.config.features})
    fields = has_field(names, (row.config.features for row in rows))
    has, cells = fields, [row.cell for row in rows]
    if rows[0].kind.startswith("cuda"):
        main = fields[:, [name in MAIN for name in names]]
        for cell in sorted(set(cells), key=str):
            has = np.hstack([has, main * np.array([[c == cell] for c in cells])])
    logs = np.array([row.log or 0.0 for row in rows])
    is_timed = [row.log is not None for row in rows]
    weight = np.array([10.0 / cells.count(cell) for cell in cells]) * is_timed
    shrink = [1.0] * len(names) + [2.0] * (has.shape[1] - len(names))
    effects = ridge(has, weight, logs, SHRINK * np.array(shrink))
    made: dict[str, Any] = {
        "effects": {
            n: round(float(e), 3) for n, e in zip(names, effects, strict=False)
        },
        "seconds": {},
        "base_s": 2.0,
    }
    seconds = np.array([row.seconds for row in rows])
    known = seconds > 0
    if known.any():
        with_base = np.hstack([np.ones((known.sum(), 1)), fields[known]])
        each = np.ones(known.sum()), seconds[known], 0.5 * np.ones(len(names) + 1)
        base_s, *costs = (float(s) for s in ridge(with_base, *each))
        of_field = zip(names, costs, strict=True)
        made["seconds"] = {name: round(max(0.0, s), 1) for name, s in of_field}
        made["base_s"] = round(max(1.0, base_s), 1)
    return made


def by_size(rows: list[Row]) -> dict[str, Any]:
    """Seconds of a kind of which every table is of a real model.

    Compiles of these differ by how large the model is: what a field takes is a share of plain
    ``torch.compile()``, whose own seconds the search then learns.
    """
    plain_s = np.median([r.compile_s for r in rows if r.config == CompileConfig()])
    shares = over_plain(rows).items()
    seconds = {n: round(max(0.0, share * float(plain_s)), 1) for n, share in shares}
    return {"seconds": seconds, "base_s": OF_TRIAL_S}


def learn(rows: list[Row], without: str = "") -> dict[str, Any]:
    """The priors of all kinds, from all tables but those of one model."""
    by_kind = defaultdict(list)
    for row in rows:
        if row.model != without:
            by_kind[row.kind].append(row)
            if row.kind.count("/") == 2:  # for kinds of layers that were not recorded
                by_kind[row.kind.rpartition("/")[0]].append(row)
    found = {kind: learned(own) for kind, own in sorted(by_kind.items())}
    found[STEP] |= by_size(by_kind[STEP])
    found[STEP]["effects"] |= of_precisions(without)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", default="", help="a model that is left out")
    usual = ROOT / "autocompile/search/prior.json"
    parser.add_argument("--to", type=Path, default=usual)
    options = parser.parse_args()
    rows = recorded()
    made = {
        "made_by": "studies/search/learn.py",
        "priors": learn(rows, options.without),
    }
    options.to.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{len(made['priors'])} kinds from {len(rows)} settings")
