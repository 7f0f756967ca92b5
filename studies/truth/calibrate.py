"""How wide an interval has to be to hold the truth, by all recorded series.

    python studies/truth/calibrate.py           # measures nothing; writes calibrate.json

A figure's own interval counts how far the sets of its run are apart. To that comes a standard
deviation of how far runs are apart (``_RUNS_APART`` in ``estimate/intervals.py``): the least one, in
steps of 0.25 %, with which at least 93 % of the runs of each kind hold the truth. It is also found
without each series in turn and then asked about that series, which tells whether it travels. Tunes
on a GPU kept no sets: their errors count as if the own interval had no width.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from models import EAGER, HERE, MODELS
from recount import FOLDERS, records
from store import load
from summary import truths
from tunes import configs

from autocompile.estimate.decision import decide_all

GOAL, STEP, MOST = 0.93, 0.0025, 0.12
GPU = tuple(f"cuda/host_{n}" for n in (1, 2, 3, 4, 5))


class Run(NamedTuple):
    """One figure: the log of what it is over the truth, and half its own interval."""

    series: str
    kind: str
    error: float
    own: float
    truth: float

    def is_held(self, apart: float) -> bool:
        return abs(self.error) <= math.hypot(self.own, 1.96 * apart)


def on_cpus() -> Iterator[Run]:
    """The tunes of all CPU series, counted by the present rule."""
    for folder in FOLDERS:
        true = truths(HERE / folder, "cpu")
        for path in sorted((HERE / folder).glob("tunes_*.json")):
            model = path.stem.removeprefix("tunes_")
            names = configs(model, "cpu")
            named = {name: config for config, name in names.items()}
            for run in load(path):
                if "raced" not in run:
                    continue
                every = decide_all(list(records(run, model, named)))
                best = every[MODELS[model].batch_size].best
                pick = names[best.record.config]
                if pick == EAGER:
                    continue
                kind = "quiet CPU" if run["noise"] == "quiet" else "busy CPU"
                error = math.log(best.speedup.value / true[model][pick].value)
                own = math.log(best.speedup.high / best.speedup.value)
                truth = true[model][pick].value
                yield Run(f"{folder}, {model}, {kind}", kind, error, own, truth)


def on_gpus() -> Iterator[Run]:
    """The tunes of all GPU series, as they were reported."""
    for folder in GPU:
        true = truths(HERE / folder, "cuda")
        for path in sorted((HERE / folder).glob("tunes_*.json")):
            model = path.stem.removeprefix("tunes_")
            for run in load(path):
                if run.get("speedup") and run.get("pick") in true[model]:
                    truth = true[model][run["pick"]].value
                    error = math.log(run["speedup"][0] / truth)
                    yield Run(f"{folder}, {model}", "GPU", error, 0.0, truth)


def share(runs: Sequence[Run], is_held: Callable[[Run], bool]) -> str:
    return f"{sum(map(is_held, runs))} of {len(runs)}"


def off(runs: Sequence[Run]) -> tuple[float, float, float]:
    errors = [100 * run.error for run in runs]
    sizes = [abs(error) for error in errors]
    return round(median(sizes), 1), round(max(sizes), 1), round(fmean(errors), 1)


def least(runs: Sequence[Run]) -> float:
    """The least standard deviation that reaches the goal in each kind."""
    by_kind = {k: [r for r in runs if r.kind == k] for k in {r.kind for r in runs}}
    apart = STEP
    while apart < MOST:
        held = (sum(r.is_held(apart) for r in of) / len(of) for of in by_kind.values())
        if all(each >= GOAL for each in held):
            break
        apart += STEP
    return round(apart, 6)


def main() -> None:
    runs = [*on_cpus(), *on_gpus()]
    without = {
        series: least([r for r in runs if r.series != series])
        for series in sorted({r.series for r in runs})
    }
    apart = max(without.values())
    found: dict[str, Any] = {
        "goal": GOAL,
        "runs_apart": apart,
        "least_of_all": least(runs),
        "left_out": without,
        "kinds": {
            kind: {
                "off by, %: median, most, mean with its sign": off(of),
                "slower than eager in truth": share(of, lambda r: r.truth <= 1),
                "held": share(of, lambda r: r.is_held(apart)),
                "held when its series is left out": share(
                    of, lambda r: r.is_held(without[r.series])
                ),
                "held with 0.015, as before": share(of, lambda r: r.is_held(0.015)),
            }
            for kind in ("quiet CPU", "busy CPU", "GPU")
            if (of := [r for r in runs if r.kind == kind])
        },
    }
    (HERE / "calibrate.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if k != "left_out"}, indent=1))


if __name__ == "__main__":
    main()
