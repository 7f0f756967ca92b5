"""The recorded tunes counted again by the present rule: same rounds, same truth.

    python studies/truth/recount.py           # measures nothing; a few seconds

A tune on a CPU keeps the raw rounds of its search and of its race, so that a change of the rule can
be held against every tune there is. Which settings were raced, and how often, stays as it was. For
each series: picks within 1 % of the best, median error of the figure and largest one, and how many
intervals hold the truth, as they were reported and as they are now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from series import CONFIGS, EAGER, NAMES, NETWORKS, ON_A_GPU, behind, recorded

from autocompile.estimate.decision import Decision, decide_all
from autocompile.store.record import Measurement, Outcome, Record, Step


def records(run: dict[str, Any], network: str) -> Iterator[Record]:
    """The search's trials and the sides of each set, as far as the decision looks at them."""
    numbers = {name: number for number, name in enumerate(run["searched"])}
    phase, size = NETWORKS[network]

    def record(
        number: int, name: str, eager_us: list[float], us: list[float], **more: Any
    ) -> Record:
        measured = Measurement(
            tuple(x / 1e6 for x in eager_us), tuple(x / 1e6 for x in us)
        )
        more |= {"outcome": Outcome.OK, "step": Step.EXIT, "measurement": measured}
        return Record(number, phase, CONFIGS[name], size, **more)

    for name, seen in run["searched"].items():
        yield record(
            numbers[name],
            name,
            seen["eager_us"],
            seen["compiled_us"],
            compile_s=seen["compile_s"],
        )
    for process, one in enumerate(run["raced"]):
        for name, us in one["sides_us"].items():
            yield record(
                1000 + process,
                name,
                one["eager_us"],
                us,
                role="confirm",
                repeats=numbers[name],
                race=one["set"],
                reference_s=one["reference_us"] / 1e6,
                raced_in=process,
            )


def decided(run: dict[str, Any], network: str) -> Decision:
    """What the present rule makes of a run."""
    return decide_all(list(records(run, network)))[NETWORKS[network].batch_size]


class Tune(NamedTuple):
    """What a tune says, beside what is true."""

    pick: str
    speedup: Sequence[float]
    true: dict[str, float]

    @property
    def behind(self) -> float:
        return behind(self.pick, self.true)

    @property
    def truth(self) -> float:
        return self.true[self.pick]

    @property
    def off(self) -> float:
        return abs(self.speedup[0] / self.truth - 1)

    @property
    def is_held(self) -> bool:
        _, low, high = self.speedup
        return low <= self.truth <= high


def recounted(run: dict[str, Any], network: str, true: dict[str, float]) -> Tune:
    """Pick and figure as the present rule has them."""
    decision = decided(run, network)
    # What decides among equals, compile times without the toolchain's, is not kept.
    reported = (c for c in decision.ties if NAMES[c.record.config] == run["pick"])
    best = next(reported, decision.best)
    found = best.reported
    speedup = [round(x, 5) for x in (found.value, found.low, found.high)]
    return Tune(NAMES[best.record.config], speedup, true)


def share(found: Sequence[bool]) -> str:
    return f"{sum(found)} of {len(found)} ({sum(found) / len(found):.0%})".replace(
        "%", " %"
    )


def cells(tunes: Sequence[Tune]) -> list[str]:
    faster = [tune for tune in tunes if tune.pick != EAGER]
    off = [100 * tune.off for tune in faster]
    return [
        share([not tune.behind for tune in tunes]),
        f"{median(off):.1f}, {max(off):.0f} %",
        share([tune.is_held for tune in faster]),
    ]


def row(words: Sequence[str]) -> str:
    return "| " + " | ".join(words) + " |"


def on_cpus() -> Iterator[tuple[list[str], list[Tune], list[Tune]]]:
    """Of each series what it is called, its tunes as reported, and by the present rule."""
    for host, network, true, tunes in recorded("cpu"):
        for noise in ("quiet", "noisy"):
            runs = [run for run in tunes if run["noise"] == noise]
            before = [Tune(run["pick"], run["speedup"], true) for run in runs]
            now = [recounted(run, network, true) for run in runs]
            yield [host, network, noise, str(len(runs))], before, now


def summary(tunes: Sequence[Tune]) -> str:
    """All tunes on CPUs."""
    short = [100 * tune.behind for tune in tunes if tune.behind]
    faster = [tune for tune in tunes if tune.pick != EAGER]
    return (
        f"{len(tunes) - len(short)} of {len(tunes)} picks are within 1 % of the best, the others "
        f"{min(short):.0f} to {max(short):.0f} % behind; of {len(faster)} settings called faster "
        f"than eager mode {sum(tune.truth <= 1 for tune in faster)} are slower in truth"
    )


def on_gpus() -> str:
    """The picks on GPUs, where the truth of every setting was measured."""
    judged = [
        not behind(run["pick"], true)
        for _, _, true, tunes in recorded("cuda")
        for run in tunes
        if {EAGER, *ON_A_GPU} <= true.keys()
    ]
    return f"GPU: {sum(judged)} of {len(judged)} picks are within 1 % of the best"


def main() -> None:
    figures = ["pick within 1 %", "error: median, worst", "interval holds the truth"]
    head = ["host", "model", "condition", "runs"]
    head += [f"{f}, {when}" for when in ("as reported", "now") for f in figures]
    print(row(head), row(["---"] * len(head)), sep="\n")
    every: list[Tune] = []
    for name, before, now in on_cpus():
        print(row([*name, *cells(before), *cells(now)]))
        every += now
    print("", summary(every), on_gpus(), sep="\n")


if __name__ == "__main__":
    main()
