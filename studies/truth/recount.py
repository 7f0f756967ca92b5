"""The recorded tunes counted again by the present rule: same rounds, same truth.

    python studies/truth/recount.py           # measures nothing; a few seconds
    python studies/truth/recount.py host_1

A tune keeps the raw rounds of its search and of its race, so that a change of the rule can be held
against every tune there is. Which settings were raced, and how often, stays as it was. For each
series: picks within 1 % of the best, median error of the figure and largest one, and how many
intervals hold the truth, as they were reported and as they are now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models import EAGER, HERE, MODELS
from store import load
from summary import Score, median, score, series, share, table, truths
from tunes import configs, rounded

from autocompile.estimate.decision import decide_all
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Measurement, Outcome, Record, Step

FOLDERS = (
    "host_1",
    "busy_host_1",
    "busy_host_2",
    "host_3_in_turns",
    "busy_host_4_in_turns",
    "busy_host_5_in_turns",
)


def records(
    run: dict[str, Any], model: str, named: dict[str, CompileConfig]
) -> Iterator[Record]:
    """The search's trials and the sides of each set, as far as the decision looks at them."""
    numbers = {name: number for number, name in enumerate(run["searched"])}
    phase, size = MODELS[model].phase, MODELS[model].batch_size

    def record(
        name: str, eager_us: list[float], us: list[float], **more: Any
    ) -> Record:
        measured = Measurement(
            tuple(x / 1e6 for x in eager_us),
            tuple(x / 1e6 for x in us),
        )
        more |= {"outcome": Outcome.OK, "step": Step.EXIT, "measurement": measured}
        return Record(more.pop("number"), phase, named[name], size, **more)

    for name, seen in run["searched"].items():
        yield record(
            name,
            seen["eager_us"],
            seen["compiled_us"],
            number=numbers[name],
            compile_s=0.0 if name == EAGER else seen["step_s"].get("compile"),
        )
    for process, one in enumerate(run["raced"]):
        for name, us in one["sides_us"].items():
            yield record(
                name,
                one["eager_us"],
                us,
                number=1000 + process,
                role="confirm",
                repeats=numbers[name],
                race=one["set"],
                reference_s=one["reference_us"] / 1e6,
                raced_in=process,
            )


def recounted(run: dict[str, Any], model: str) -> dict[str, Any]:
    """The run with pick, figure and sets as the present rule has them."""
    names = configs(model, "cpu")
    named = {name: config for config, name in names.items()}
    decision = decide_all(list(records(run, model, named)))[MODELS[model].batch_size]
    # What decides among equals, compile times without the toolchain's, is not kept.
    reported = (c for c in decision.ties if names[c.record.config] == run["pick"])
    best = next(reported, decision.best)
    return {
        **run,
        "pick": names[best.record.config],
        "speedup": rounded(best.reported),
        "sets": best.sets,
        "decided": not decision.open,
    }


def rows(folder: Path) -> Iterator[list[str]]:
    """A row for each series of a folder."""
    true = truths(folder, "cpu")
    runs = [
        {"model": path.stem.removeprefix("tunes_"), "is_busy": False, **run}
        for path in sorted(folder.glob("tunes_*.json"))
        for run in load(path)
        if "raced" in run
    ]
    for (model, noise, _), ours in series(runs).items():
        before, after = (
            score(each, true[model])
            for each in (ours, [recounted(r, model) for r in ours])
        )
        yield [folder.name, model, noise, str(len(ours)), *cells(before), *cells(after)]


def cells(found: Score) -> list[str]:
    off = [100 * error for error in found.errors] or [0.0]
    picked = [index < found.in_ties for index in range(found.runs)]
    return [share(picked), f"{median(off):.1f}, {max(off):.0f} %", share(found.covered)]


def main() -> None:
    folders = sys.argv[1:] or FOLDERS
    head = ["host", "model", "condition", "runs"]
    figures = ["pick within 1 %", "error: median, worst", "interval holds the truth"]
    found = [row for name in folders for row in rows(HERE / name)]
    titles = [
        *head,
        *(f"{f}, as reported" for f in figures),
        *(f"{f}, now" for f in figures),
    ]
    print(table(titles, found))


if __name__ == "__main__":
    main()
