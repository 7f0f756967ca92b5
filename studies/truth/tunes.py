"""Tune the models again and again: which setting autocompile picks and what it reports.

    python studies/truth/tunes.py --model mlp --noise quiet --count 20
    python studies/truth/tunes.py --model cnn --noise noisy --count 20
    python studies/truth/tunes.py --model adam --noise quiet --count 5 --device cuda

Each run searches the settings whose truth is known, with another seed and a folder of its own, and
races the best of them; the raw rounds of every race are kept. Every result is kept at once in
``<device>/tunes_<model>.json``, and ``--count`` is about all that are there: a series can be
stopped and gone on with.

A run waits until the machine is as fast as the truth has seen it, since others share it; how fast
it was before and after is kept (``host``), and a run whose machine was slow is one on a busy host.
With ``--anyway`` it does not wait: for a folder whose truth was measured on such a host.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ground_truth import best_yard_us
from models import EAGER, HERE, MODELS, ROOT
from store import append, commit, last_line, load, neighbour
from yardstick import is_busy

import autocompile.api
import autocompile.space.space
from autocompile.errors import AutocompileError
from autocompile.estimate.candidates import candidates
from autocompile.estimate.decision import decide_all
from autocompile.estimate.intervals import Interval
from autocompile.request import EFFORTS
from autocompile.settings.config import CompileConfig
from autocompile.settings.searchspace import SearchSpace
from autocompile.space.space import Space
from autocompile.store.record import Record

FASTER = 0.95  # times the truth's best yardstick: the machine has another clock


def configs(model: str, device: str) -> dict[CompileConfig, str]:
    """The settings of the study as autocompile writes them."""
    named = MODELS[model].settings[device]
    return {CompileConfig(EAGER): EAGER} | {
        CompileConfig(**kw): n for n, kw in named.items()
    }


def space_of(model: str, device: str) -> SearchSpace:
    """The smallest product that holds all settings of the study."""
    ours = [c for c in configs(model, device) if not c.is_eager]

    def values(field: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(getattr(c, field) for c in ours))

    size = MODELS[model].batch_size
    return SearchSpace(
        backends=values("backend"),
        modes=tuple(dict.fromkeys(c.mode for c in ours if c.backend == "inductor")),
        batch_sizes=None if size is None else (size,),
        fullgraph=(False,),
        dynamic=values("dynamic"),
        memory_format=("default",),
        optimizer=("default",),
        freezing=(False,),
    )


@contextlib.contextmanager
def only(wanted: dict[CompileConfig, str]) -> Iterator[None]:
    """Leave out of a product what the study does not have."""
    whole = autocompile.space.space.build_space

    def narrowed(*args: Any) -> Space:
        space = whole(*args)
        return dataclasses.replace(
            space,
            settings=tuple(s for s in space.settings if s.config in wanted),
            unusable={
                s: why for s, why in space.unusable.items() if s.config in wanted
            },
        )

    autocompile.space.space.build_space = narrowed
    try:
        yield
    finally:
        autocompile.space.space.build_space = whole


def run(model: str, device: str, effort: str, seed: int) -> dict[str, Any]:
    """One run of ``tune`` and what it says."""
    phase, names = MODELS[model].phase, configs(model, device)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="truth-") as scratch, only(names):
        try:
            result = autocompile.api.tune(
                str(ROOT / MODELS[model].target),
                phases=(phase,),
                space=space_of(model, device),
                effort=effort,
                device=device,
                seed=seed,
                run_dir=Path(scratch) / "run",
            )
        except AutocompileError as error:
            return {"error": error.what, "wall_s": round(time.monotonic() - began, 1)}
    if result.interrupted:
        raise KeyboardInterrupt
    records = [r for r in result.trials if r.phase == phase]
    decision = decide_all(records)[MODELS[model].batch_size]
    report, found = result.to_dict()["phases"][phase], candidates(records)
    return {
        "verdict": result.verdict[phase],
        "pick": names[decision.best.record.config],
        "speedup": rounded(decision.best.reported),
        "sets": decision.best.sets,
        "races": len({r.race for r in records} - {None}),
        "decided": not decision.open,
        "ceiling": round(decision.ceiling or 0.0, 5),
        "slow_host": bool(decision.best.slow_sets),
        "reason": report["answer"]["reason"],
        "ties": [names[c.record.config] for c in decision.ties],
        "all": {names[c.record.config]: [c.sets, *rounded(c.speedup)] for c in found},
        "failed": {
            names[r.config]: f"{r.outcome.value}: {r.message[:200]}"
            for r in result.trials
            if not r.ok
        },
        "searched": {
            names[r.config]: searched(r)
            for r in records
            if r.ok
            and r.race is None
            and r.duplicate_of is None  # otherwise its twin's
        },
        "raced": raced(records, names),
        "wall_s": round(time.monotonic() - began, 1),
    }


def rounded(interval: Interval) -> list[float]:
    return [round(v, 5) for v in (interval.value, interval.low, interval.high)]


def microseconds(seconds: Iterable[float]) -> list[float]:
    return [float(f"{1e6 * s:.4g}") for s in seconds]


def reference_us(record: Record) -> float:
    """What the product's own reference work took beside it."""
    return round(1e6 * (record.reference_s or 0.0), 1)


def searched(record: Record) -> dict[str, Any]:
    """A setting in its one process of the search."""
    measurement = record.measurement
    assert measurement is not None
    return {
        "speedup": rounded(measurement.speedup),
        "eager_us": microseconds(measurement.eager_s),
        "compiled_us": microseconds(measurement.compiled_s),
        "reference_us": reference_us(record),
        "calls": list(measurement.calls),
        "leads": list(measurement.leads),
        "wall_s": round(record.wall_s, 1),
        "step_s": {step: round(seconds, 2) for step, seconds in record.step_s.items()},
    }


def raced(
    records: Iterable[Record], names: dict[CompileConfig, str]
) -> list[dict[str, Any]]:
    """A row for each process of each set: eager's rounds, and those of every side beside them."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for r in records:
        if r.race is None or r.measurement is None:
            continue
        row = found.setdefault(
            (r.race, r.process),
            {
                "set": r.race,
                "reference_us": reference_us(r),
                "eager_us": microseconds(r.measurement.eager_s),
                "sides_us": {},
                "wall_s": 0.0,
            },
        )
        row["sides_us"][names[r.config]] = microseconds(r.measurement.compiled_s)
        row["wall_s"] = round(
            row["wall_s"] + r.wall_s, 1
        )  # a side's record has its share
    return [found[key] for key in sorted(found)]


def yardstick(device: str) -> dict[str, float]:
    """Its median and its best of five seconds, in microseconds."""
    return last_line([sys.executable, str(HERE / "yardstick.py"), "5", device], {}, 120)


def host(device: str, known_us: float) -> float:
    """How long the yardstick takes now, over its best."""
    seen = yardstick(device)
    return round(seen["median"] / min(known_us, seen["best"]), 3)


def calm_host(device: str, known_us: float, wait_s: float) -> float:
    """The same as soon as nobody else has the machine.

    Raises:
        SystemExit: somebody had it all the time, or it is faster than ever beside the truth.
    """
    if (best_us := yardstick(device)["best"]) < FASTER * known_us:
        raise SystemExit(
            f"the yardstick takes {best_us:.1f} us here, where the truth was measured "
            f"{known_us:.1f}: this is another machine, whose truth has to be measured first"
        )
    end = time.monotonic() + wait_s
    while is_busy([found := host(device, known_us)], device):
        if time.monotonic() > end:
            raise SystemExit(
                f"the machine was busy for {wait_s / 60:.0f} minutes ({found})"
            )
        time.sleep(10)
    return found


def next_seed(
    rows: list[dict[str, Any]], noise: str, effort: str, first: int = 0
) -> int:
    """No two runs of a model have a seed in common, whatever the noise and the effort."""
    first += 1000 * (noise == "noisy") + 2000 * sorted(EFFORTS).index(effort)
    return max((row["seed"] + 1 for row in rows), default=first)


def one(model: str, noise: str, device: str, effort: str, seed: int) -> dict[str, Any]:
    """A row of the file, but for what the host was like."""
    with neighbour(noise, seed):
        found = run(model, device, effort, seed)
    series = {"noise": noise, "effort": effort}
    return {
        "method": "autocompile",
        "commit": commit(),
        **series,
        "seed": seed,
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--noise", choices=("quiet", "noisy"), default="quiet")
    parser.add_argument(
        "--count",
        type=int,
        default=20,
        help="of runs on a calm host, those there included",
    )
    parser.add_argument("--effort", choices=sorted(EFFORTS), default="normal")
    parser.add_argument(
        "--first-seed", type=int, default=0, help="10000 and more: another host"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--wait", type=float, default=30, help="minutes at most for a calm machine"
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="do not wait; runs on a busy host count too",
    )
    parser.add_argument(
        "--folder", type=Path, help="for the JSON; beside this file if left out"
    )
    args = parser.parse_args()
    path = (args.folder or HERE / args.device) / f"tunes_{args.model}.json"
    os.environ.update(MODELS[args.model].environment)  # trials inherit it
    series = {"noise": args.noise, "effort": args.effort}
    # A run on a busy host is kept, and does not count for the series.
    rows = [row for row in load(path) if series.items() <= row.items()]
    calm = sum(
        args.anyway or not is_busy(row.get("host", ()), args.device) for row in rows
    )
    known_us = best_yard_us(load(path.with_name(f"truth_{args.model}.json")))
    seed = next_seed(rows, args.noise, args.effort, args.first_seed)
    while calm < args.count:
        if args.anyway:
            before = host(args.device, known_us)
        else:
            before = calm_host(args.device, known_us, 60 * args.wait)
        row = one(args.model, args.noise, args.device, args.effort, seed)
        seen = [before, host(args.device, known_us)]
        calm += args.anyway or not is_busy(seen, args.device)
        append(path, args.device, {**row, "host": seen})
        said = row.get("error") or f"{row['verdict']} {row['pick']} {row['speedup']}"
        print(
            f"{args.model} {args.noise} {seed}: {said}, {row['wall_s']:.0f} s {seen}",
            flush=True,
        )
        seed += 1


if __name__ == "__main__":
    main()
