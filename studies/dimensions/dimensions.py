"""What each dimension brings over backend x mode x fullgraph, alone and all together.

    python studies/dimensions/dimensions.py --model ppo_cnn      # 10 to 60 minutes on two cores
    python studies/dimensions/dimensions.py --model cnn --device cuda
    python studies/dimensions/dimensions.py --model cnn --sizes 4 --python ipex=VENV/bin/python

One run of ``tune`` for each model, with the dimensions asked for by name. Its search measures
every setting; of each row of the table the two that look best (``--confirmed``) are then measured
again in fresh processes, as finalists are, and only that is reported. Written to
``<device>/<model>.json``, and with other interpreters to ``<device>/<model>_environments.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import autocompile.search.finalists
from autocompile.ranking import Candidate, candidates

import autocompile.api
from autocompile.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.record import Record
from autocompile.report.live import progress
from autocompile.search.space import SearchSpace

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BASE = "backend, mode, fullgraph"
ALL = "all together"
ELSEWHERE = "another environment"
SESSIONS = "sessions.json"  # in a run's folder: what each call of this script has spent on it


@dataclass(frozen=True)
class Model:
    """What is tuned: ``sizes`` are batch sizes."""

    target: str
    phase: str
    sizes: tuple[int, ...] | None = (1, 4, 16)


MODELS = {
    "ppo_cnn": Model("examples/ppo_breakout.py", "forward_exploration"),
    "ppo_mlp": Model("studies/dimensions/targets/ppo_mlp.py", "forward_exploration"),
    "atari": Model("studies/tuning_cost/ppo_cnn.py", "forward"),  # ppo_cnn where there is no ray
    "cnn": Model("examples/cnn.py", "forward"),
    "transformer": Model("examples/transformer.py", "forward"),
    "lstm": Model("studies/dimensions/targets/lstm_policy.py", "forward"),
    "adam": Model("examples/adam.py", "optimizer_step", None),
}

# Who uses a dimension: a row of the table for each.
ROWS: dict[str, Callable[[CompileConfig], bool]] = {
    "memory format": lambda c: c.memory_format != "default",
    "frozen weights": lambda c: c.freezing,
    "onnxrt": lambda c: c.backend == "onnxrt",
    "openvino_onnx": lambda c: c.backend == "openvino_onnx",
    "Inductor options": lambda c: bool(c.options) and c.backend == "inductor",
    "regions": lambda c: c.scope != "full",
    "dynamic": lambda c: c.dynamic is not None,
    "threads": lambda c: c.threads is not None,
    "optimizer": lambda c: c.optimizer != "default",
    ELSEWHERE: lambda c: c.environment != "default",
}


def uses(config: CompileConfig) -> set[str]:
    """The dimensions in which a setting differs from a plain one."""
    return {name for name, is_used in ROWS.items() if is_used(config)}


def allows(row: str, used: set[str]) -> bool:
    """Whether a row may choose a setting that uses these dimensions.

    It is the base with one dimension, or with all; in another environment everything goes.
    """
    if row == ALL or (row == ELSEWHERE and row in used):
        return True
    return used <= (set() if row == BASE else {row})


def row_of(name: str, found: Iterable[Candidate]) -> list[Candidate]:
    """The settings that a row may choose from."""
    return [c for c in found if allows(name, uses(c.record.config))]


def rows() -> list[str]:
    return [BASE, *ROWS, ALL]


def choose(confirmed: int, records: Sequence[Record], *_: Any) -> list[Record]:
    """In place of autocompile's own choice of finalists: the best of every row and batch size."""
    found = [c for c in candidates(records) if c.is_known_to_pay]
    chosen: dict[int, Record] = {}
    for size in {c.record.batch_size for c in found}:
        here = [c for c in found if c.record.batch_size == size]
        for name in rows():
            ours = [c for c in row_of(name, here) if not c.record.config.is_baseline]
            # By the search alone: who is chosen stays, however wide two processes leave it.
            order = sorted(ours, key=lambda c: c.searched.low, reverse=True)
            chosen |= {c.record.number: c.record for c in order[:confirmed]}
        plain = (DEFAULT_INDUCTOR, EAGER)
        chosen |= {c.record.number: c.record for c in here if c.record.config in plain}
    return list(chosen.values())


def space_of(model: Model, device: str) -> SearchSpace:
    """Every dimension by name; autocompile leaves out what has no sense in the phase."""
    on_cpu = device == "cpu"
    return SearchSpace(
        batch_sizes=model.sizes,
        fullgraph=(False, True),
        dynamic=(None, False) if on_cpu else (None,),
        threads=(None, 1) if on_cpu else None,
    )


def spent(records: Sequence[Record]) -> dict[str, Any]:
    """How many settings needed no process, and about how many seconds that saved."""
    search = [r for r in records if r.role == "search"]
    ran = [r for r in search if r.wall_s > 0]
    answered = [r for r in search if r.wall_s == 0]
    typical = sorted(r.wall_s for r in ran)[len(ran) // 2] if ran else 0.0
    reasons = Counter(
        "same code by construction"
        if r.ok
        else ("graph break known" if r.outcome.value == "graph_break" else "cannot be used here")
        for r in answered
    )
    untimed = [r for r in ran if r.duplicate_of is not None]
    return {
        "listed": len(search),
        "processes": len(ran),
        "answered": dict(reasons),
        "same_code_found_after_compiling": len(untimed),
        "typical_trial_s": round(typical, 2),
        "trial_seconds": round(sum(r.wall_s for r in ran), 1),
        "confirm_processes": sum(r.role == "confirm" for r in records),
    }


def sessions_of(run_dir: Path | None) -> list[dict[str, Any]]:
    """What a run that is gone on with has been given before."""
    path = run_dir and run_dir / SESSIONS
    return json.loads(path.read_text("utf-8")) if path and path.exists() else []


def machine(environment: dict[str, Any]) -> dict[str, Any]:
    names = ("torch", "python", "device", "device_name", "threads")
    found = {name: environment.get(name) for name in names}
    found["cores"] = environment.get("cores")
    return {**found, "platform": platform.machine(), "optuna": metadata.version("optuna")}


def run(
    name: str,
    device: str,
    seed: int,
    sizes: tuple[int, ...] | None,
    pythons: tuple[str, ...],
    budget_s: float | None,
    confirmed: int,
    trials: int | None,
    run_dir: Path | None,
) -> dict[str, Any]:
    model = dataclasses.replace(MODELS[name], sizes=sizes or MODELS[name].sizes)
    # Dimensions of full effort, timed as at quick effort: what counts is confirmed anyway.
    quick = autocompile.api.effort_of("quick")
    wide = dataclasses.replace(
        autocompile.api.effort_of("full"),
        half_width=quick.half_width,
        max_s=quick.max_s,
        processes=3,
        most_processes=5,
        fullgraph=(False, True),
    )
    autocompile.api.effort_of = lambda _: wide
    began = time.monotonic()
    before = sessions_of(run_dir)
    with tempfile.TemporaryDirectory(prefix="dimensions-") as scratch:
        folder = run_dir or Path(scratch) / "run"
        tune = functools.partial(
            autocompile.api.tune,
            str(ROOT / model.target),
            phases=(model.phase,),
            space=space_of(model, device),
            effort="full",
            device=device,
            seed=seed,
            pythons=pythons,
            run_dir=folder,
            progress=progress("plain", sys.stderr),
        )
        # The budget is the search's alone: with it spent, only what may win would be confirmed.
        autocompile.search.finalists.choose = lambda *_: []
        searched = tune(trials=trials, budget_s=budget_s, resume=folder.exists())
        autocompile.search.finalists.choose = functools.partial(choose, confirmed)
        result = tune(trials=1, resume=True)
        report = result.to_dict()
        this = {
            "budget_s": budget_s,
            "trials": trials,
            "confirmed": confirmed,
            "wall_s": round(time.monotonic() - began, 1),
            "interrupted": searched.interrupted or result.interrupted,
        }
        sessions = [*before, this]
        (folder / SESSIONS).write_text(json.dumps(sessions) + "\n")
    records = [r for r in result.trials if r.phase == model.phase]
    found = candidates(records)
    return {
        "schema": 2,
        "model": name,
        "phase": model.phase,
        "machine": machine(report["environment"]),
        "environments": {
            place: {k: v for k, v in seen.items() if k in ("torch", "python")}
            for place, seen in report.get("environments", {}).items()
        },
        "sessions": sessions,
        "wall_s": round(sum(s["wall_s"] for s in sessions), 1),
        "spent": spent(records),
        "noise_floor": report["phases"][model.phase].get("noise_floor"),
        "settings": [
            {
                "number": c.record.number,
                "config": c.record.config.to_dict(),
                "label": c.record.config.label(),
                "batch_size": c.record.batch_size,
                "uses": sorted(uses(c.record.config)),
                "confirmed": c.confirmed,
                "speedup": [round(v, 5) for v in (c.speedup.value, c.speedup.low, c.speedup.high)],
                "call_us": round(c.call_s * 1e6, 2),
                "compile_s": c.record.compile_s and round(c.record.compile_s, 2),
                "refresh_s": c.refresh_s,
                "calls_per_update": c.record.calls_per_update,
                "flags": list(c.flags),
            }
            for c in found
        ],
        "processes": [
            {
                "number": r.number,
                "repeats": r.repeats,
                "eager_us": round(r.measurement.eager_call_s * 1e6, 1),
                "call_us": round(r.measurement.compiled_call_s * 1e6, 1),
                "page_faults": r.detail.get("page_faults"),  # of a call of eager, and of the other
            }
            for r in records
            if r.measurement and r.duplicate_of is None
        ],
        "failed": dict(
            Counter(
                f"{r.config.label()}: {r.outcome.value}: {r.message[:120]}"
                for r in records
                if not r.ok and r.wall_s > 0
            )
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", help="batch sizes instead of the model's")
    parser.add_argument("--python", action="append", default=[], help="NAME=PATH; repeatable")
    parser.add_argument("--budget-s", type=float, help="of the search; to its end if left out")
    parser.add_argument("--confirmed", type=int, default=2, help="the best so many of each row")
    parser.add_argument("--trials", type=int, help="the most in the search; all if left out")
    parser.add_argument("--run", type=Path, help="a folder that is kept, and gone on with")
    parser.add_argument("--folder", type=Path, help="for the JSON; beside this file if left out")
    args = parser.parse_args()
    folder = args.folder or HERE / args.device
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{args.model}{'_environments' if args.python else ''}.json"
    sizes = tuple(args.sizes) if args.sizes else None
    found = run(
        args.model,
        args.device,
        args.seed,
        sizes,
        tuple(args.python),
        args.budget_s,
        args.confirmed,
        args.trials,
        args.run,
    )
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
