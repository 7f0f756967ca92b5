"""How wide an interval has to be to hold the truth, by all recorded series.

    python studies/truth/calibrate.py           # measures nothing; writes calibrate.json

A figure's own interval counts how far the sets of its run are apart. To that comes a standard
deviation of how far runs are apart (``_RUNS_APART`` in ``estimate/intervals.py``): the least one, in
steps of 0.25 %, with which at least 93 % of the runs of each kind hold the truth. It is also found
without each series in turn and then asked about that series, which tells whether it travels. Of a
GPU, how far eager mode's processes are apart comes to it. Older tunes on a GPU kept neither sets nor
that: their errors count as if both were 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from recount import decided
from series import EAGER, HERE, NAMES, recorded

GOAL, STEP, MOST = 0.93, 0.0025, 0.12
LONG_LOOPS = {"cpu": "quiet CPU", "cuda_before": "GPU", "cuda": "GPU"}


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
    for host, network, true, tunes in recorded("cpu"):
        for run in tunes:
            best = decided(run, network).best
            pick = NAMES[best.record.config]
            if pick == EAGER:
                continue
            kind = "quiet CPU" if run["noise"] == "quiet" else "busy CPU"
            error = math.log(best.speedup.value / true[pick])
            own = math.log(best.speedup.high / best.speedup.value)
            yield Run(f"{host}, {network}, {kind}", kind, error, own, true[pick])


def on_gpus() -> Iterator[Run]:
    """The tunes of all GPU series, as they were reported."""
    for host, network, true, tunes in recorded("cuda"):
        for run in tunes:
            truth = true[run["pick"]]
            error = math.log(run["speedup"][0] / truth)
            yield Run(f"cuda/{host}, {network}", "GPU", error, 0.0, truth)


def at_length() -> Iterator[Run]:
    """The tunes that long loops followed, as reported: ``between_runs`` is taken out again."""
    for made, kind in LONG_LOOPS.items():
        data = json.loads((HERE / f"long_loops_{made}.json").read_text())
        for name, found in data["networks"].items():
            if "truth" not in found:
                continue
            figure, truth = found["figure"], found["truth"]
            own = math.log(figure["high"] / figure["value"])
            own = math.sqrt(max(0.0, own**2 - (1.96 * data["runs_apart"]) ** 2))
            if kind == "GPU" and not found.get("counts_eager"):
                eager = map(math.log, found["eager_s_of_processes"])
                own = math.hypot(
                    own, 1.96 * stdev(eager) / math.sqrt(found["sets"] or 1)
                )
            error = math.log(figure["value"] / truth)
            yield Run(f"long loops, {name}, {made}", kind, error, own, truth)


def share(runs: Sequence[Run], is_held: Callable[[Run], bool]) -> str:
    return f"{sum(map(is_held, runs))} of {len(runs)}"


def off(runs: Sequence[Run]) -> tuple[float, float, float]:
    errors = [100 * math.expm1(run.error) for run in runs]
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
    runs = [*on_cpus(), *on_gpus(), *at_length()]
    without = {
        series: least([r for r in runs if r.series != series])
        for series in sorted({r.series for r in runs})
    }
    apart = least(runs)
    found: dict[str, Any] = {
        "goal": GOAL,
        "runs_apart": apart,
        "left_out": without,
        "kinds": {
            kind: {
                "off by, %: median, most, mean with its sign": off(of),
                "slower than eager in truth": share(of, lambda r: r.truth <= 1),
                "held": share(of, lambda r: r.is_held(apart)),
                "held when its series is left out": share(
                    of, lambda r: r.is_held(without[r.series])
                ),
            }
            for kind in ("quiet CPU", "busy CPU", "GPU")
            if (of := [r for r in runs if r.kind == kind])
        },
    }
    (HERE / "calibrate.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if k != "left_out"}, indent=1))


if __name__ == "__main__":
    main()
