"""Which rules of the estimate earn their place: each one changed alone, on recorded raw rounds.

    python studies/truth/replay.py           # a minute; prints the table, writes replay.json
    python studies/truth/replay.py --table   # the recorded table

A replayed run draws fresh processes from the recorded ones, with replacement: one of each setting
for the search, then sets for the race, until ``autocompile.estimate`` has decided. Of a process it
sees as many neighbouring rounds as a race has. All variants see the same draws.

- calm: the calm processes of ``cpu/``;
- spells, long spells: of them too, but one set in five (two in five) falls into a slow spell of the
  host and draws from the slow processes of ``cpu/``; the truth stays that of the calm ones;
- busy: all processes of ``busy/`` and ``busy_server/``; the truth is that of all their rounds.

A cell of the table: error of the figure in percent, median and 95th percentile; how often the 95 %
interval holds the truth; how often the pick is within 1 % of the best; how often the decision is
clear; sets used.

In a real race all settings share a process and are compared in the same rounds; the recorded ones
had a process each, and are compared by way of eager. So the intervals between settings are wider
here than in a run.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ground_truth import Truth, analyse, best_yard_us, calm_limit, ties
from models import EAGER, HERE, MODELS
from store import load

from autocompile.estimate import candidates as candidates_
from autocompile.estimate import decision as decision_
from autocompile.estimate.candidates import Candidate
from autocompile.estimate.decision import decide, finalists
from autocompile.estimate.intervals import Interval, median_interval, over_sets
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Measurement, Outcome, Record, Step

ROUNDS, WINDOWS = (
    24,
    16,
)  # rounds of a set; stretches of them that are taken of each process
SPELLS = {"spells": 0.2, "long spells": 0.4}  # of the sets
T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
)
PLAIN = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Variant:
    """The rule, or the rule with one piece changed.

    Attributes:
        spread: how far fresh processes are apart before any has been seen, as a logarithm.
        freedom: how many processes that knowledge is worth; 0: an ordinary t interval.
        centre: of the logarithms of the sets.
        slower: from which factor on a set is left out; None: every set counts.
        majority: keeps the slow sets where they are not the fewer.
        alone: slow sets from which on a single fast one is the exception; None: it never is.
        inside: of the rounds of a process, ``hodges_lehmann`` or ``median``.
    """

    spread: float = 0.015
    freedom: int = 4
    centre: Callable[[Sequence[float]], float] = lambda logs: sum(logs) / len(logs)
    slower: float | None = candidates_.SLOWER
    majority: bool = False
    alone: int | None = None
    sets: tuple[int, int] = decision_.SETS
    zone: float = decision_.ZONE
    rounds: int = ROUNDS
    inside: str = "median"

    def over_sets(self, logs: Sequence[float]) -> Interval:
        """As :func:`autocompile.estimate.intervals.over_sets`, which it is by default."""
        mean, count, prior = sum(logs) / len(logs), len(logs), self.freedom
        if not prior and count == 1:  # nothing is known of the spread
            prior = 4
        freedom = prior + count - 1
        spread = sum((x - mean) ** 2 for x in logs) + prior * self.spread**2
        error = T95[min(freedom, len(T95)) - 1] * math.sqrt(spread / freedom / count)
        centre = self.centre(logs)
        return Interval(
            math.exp(centre), math.exp(centre - error), math.exp(centre + error)
        )

    def left_out(self, yards: dict[int, float]) -> set[int]:
        """The sets in which the host was slower than in the others."""
        if self.slower is None:
            return set()
        limit = self.slower * min(yards.values())
        slow = {number for number, us in yards.items() if us > limit}
        if self.alone and len(slow) >= self.alone and len(yards) - len(slow) == 1:
            fast = yards.keys() - slow
            return {*fast, *self.left_out({number: yards[number] for number in slow})}
        return slow if not self.majority or 2 * len(slow) < len(yards) else set()


def _median(logs: Sequence[float]) -> float:
    return float(np.median(logs))


VARIANTS = {
    "as it is": Variant(),
    "sets: median instead of mean": Variant(centre=_median),
    "sets: no prior spread (ordinary t)": Variant(freedom=0),
    **{
        f"sets: prior spread {100 * s:g} %": Variant(spread=s)
        for s in (0.005, 0.01, 0.02, 0.03)
    },
    "sets: prior worth 2 processes": Variant(freedom=2),
    "sets: prior worth 8 processes": Variant(freedom=8),
    "host: every set counts": Variant(slower=None),
    **{
        f"host: left out from {s:g} times": Variant(slower=s)
        for s in (1.05, 1.1, 1.25, 1.4)
    },
    **{
        f"host: one fast set beside {n} slow ones is left out": Variant(alone=n)
        for n in (3, 4)
    },
    "host: left out only where they are fewer": Variant(majority=True),
    "host: every set counts, by their median": Variant(slower=None, centre=_median),
    "stop: always 3 sets": Variant(sets=(3, 3)),
    "stop: always 6 sets": Variant(sets=(6, 6)),
    "stop: 2 to 6 sets": Variant(sets=(2, 6)),
    "stop: zone of 1 %": Variant(zone=0.01),
    "stop: zone of 4 %": Variant(zone=0.04),
    "rounds: Hodges-Lehmann instead of median": Variant(inside="hodges_lehmann"),
    "rounds: 8": Variant(rounds=8),
    "rounds: 12": Variant(rounds=12),
    "rounds: 48": Variant(rounds=48),
}


@dataclass(frozen=True)
class Seen:
    """A stretch of rounds of a recorded process: logarithm of the speed-up, and its ends."""

    median: float
    low: float
    high: float
    hodges_lehmann: float
    yard_us: float


Processes = dict[
    str, list[dict[int, list[Seen]]]
]  # by setting; then by count of rounds


@dataclass(frozen=True)
class World:
    """Where runs take place: processes to draw from, and what is true of them."""

    name: str
    condition: str
    calm: Processes
    slow: Processes
    truth: dict[str, float]
    mean: dict[
        str, float
    ]  # the speed-up by the mean of all processes that are drawn from
    best: tuple[str, ...]


def hodges_lehmann(values: np.ndarray) -> float:
    """The median of all means of two."""
    rows, columns = np.triu_indices(values.size)
    return float(np.median((values[rows] + values[columns]) / 2))


def stretches(row: dict[str, Any], seed: int) -> dict[int, list[Seen]]:
    """Of a recorded process, for each count of rounds."""
    logs = np.log(np.asarray(row["eager_us"]) / np.asarray(row["compiled_us"]))
    yards, draw, found = np.asarray(row["yard_us"]), random.Random(seed), {}
    for rounds in sorted({v.rounds for v in VARIANTS.values()}):
        size = min(rounds, logs.size)
        found[rounds] = []
        for _ in range(WINDOWS):
            begin = draw.randrange(logs.size - size + 1)
            some = logs[begin : begin + size]
            inside = median_interval(some)
            yard_us = float(np.median(yards[begin : begin + size]))
            found[rounds].append(
                Seen(
                    inside.value, inside.low, inside.high, hodges_lehmann(some), yard_us
                )
            )
    return found


def worlds() -> Iterator[World]:
    """Every recorded model under each condition that its records allow."""
    for folder in ("cpu", "busy", "busy_server"):
        for path in sorted((HERE / folder).glob("truth_*.json")):
            rows = [row for row in load(path) if "error" not in row]
            name = f"{folder} {path.stem.removeprefix('truth_')}"
            seen = [(row, stretches(row, seed)) for seed, row in enumerate(rows)]
            if folder != "cpu":
                truth = analyse(rows, calm_only=False)
                yield world(name, "busy", by_setting(seen), {}, truth)
                continue
            yard_us, truth = best_yard_us(rows), analyse(rows)
            calm = by_setting([each for each in seen if is_calm(each[0], yard_us)])
            slow = by_setting([each for each in seen if not is_calm(each[0], yard_us)])
            yield world(name, "calm", calm, {}, truth)
            for condition in SPELLS:
                yield world(name, condition, calm, slow, truth)


def is_calm(row: dict[str, Any], yard_us: float) -> bool:
    """Whether a process ran on a calm host, in its median."""
    return bool(np.median(row["yard_us"]) <= calm_limit(row["threads"]) * yard_us)


def by_setting(
    seen: Sequence[tuple[dict[str, Any], dict[int, list[Seen]]]],
) -> Processes:
    found: Processes = {}
    for row, each in seen:
        found.setdefault(row["setting"], []).append(each)
    return found


def world(
    name: str, condition: str, calm: Processes, slow: Processes, truth: dict[str, Truth]
) -> World:
    values = {setting: t.value for setting, t in truth.items()}
    return World(name, condition, calm, slow, values, means(calm), tuple(ties(truth)))


def means(processes: Processes) -> dict[str, float]:
    """The speed-up of each setting by the mean logarithm of its processes."""
    return {EAGER: 1.0} | {
        setting: math.exp(
            np.mean([np.mean([s.median for s in each[ROUNDS]]) for each in ours])
        )
        for setting, ours in processes.items()
    }


Draw = dict[str, tuple[dict[int, list[Seen]], int]]


def draws(world: World, seed: int) -> list[Draw]:
    """For the search and six sets: of each setting a process and a stretch of it."""
    draw, found = random.Random(f"{world.name} {world.condition} {seed}"), []
    for _ in range(1 + max(v.sets[1] for v in VARIANTS.values())):
        is_slow = draw.random() < SPELLS.get(world.condition, 0.0)
        one: Draw = {}
        for setting, calm in world.calm.items():
            among = world.slow.get(setting, calm) if is_slow else calm
            one[setting] = draw.choice(among), draw.randrange(WINDOWS)
        found.append(one)
    return found


@functools.cache
def trial(number: int, config: CompileConfig) -> Record:
    """A trial of the search, as far as the decision looks at it."""
    measurement = Measurement((1.0,), (1.0,))
    return Record(
        number,
        "forward",
        config,
        1,
        outcome=Outcome.OK,
        step=Step.EXIT,
        measurement=measurement,
        compile_s=0.0 if config.is_eager else 3.0,
    )


def run(world: World, variant: Variant, seen: list[Draw]) -> dict[str, Any]:
    """One run: the race of :class:`autocompile.search.race.Race` without its clock."""
    kwargs = MODELS[world.name.split()[1]].settings["cpu"]
    names = {number: name for number, name in enumerate((EAGER, *world.calm))}

    def look(one: Draw, name: str) -> Seen:
        process, place = one[name]
        return process[variant.rounds][place]

    found = {EAGER: Candidate(trial(0, CompileConfig(EAGER)), PLAIN, 1e-3)}
    logs: dict[str, dict[int, float]] = {name: {} for name in world.calm}
    yards: dict[str, dict[int, float]] = {name: {} for name in world.calm}
    for number, name in list(names.items())[1:]:
        of_search, own = (
            look(seen[0], name),
            getattr(look(seen[0], name), variant.inside),
        )
        outside = variant.over_sets([own])
        inside = (
            math.exp(min(0.0, of_search.low - own)),
            math.exp(max(0.0, of_search.high - own)),
        )
        value = math.exp(own)
        found[name] = Candidate(
            trial(number, CompileConfig(**kwargs[name])),
            Interval(
                value,
                min(value * inside[0], outside.low),
                max(value * inside[1], outside.high),
            ),
            1e-3,
        )
    sets = 0
    while True:
        decision = decide(list(found.values()))
        assert decision is not None
        runners = finalists(decision)
        least = next(
            (
                most
                for most in variant.sets
                if any(c.sets < most for c in runners)
                and (most == variant.sets[0] or decision.open)
            ),
            None,
        )
        if sets >= variant.sets[1] or least is None:
            break
        sets += 1
        for c in runners:
            name = names[c.record.number]
            one = look(seen[sets], name)
            logs[name][sets] = getattr(one, variant.inside)
            yards[name][sets] = one.yard_us
            slow = variant.left_out(yards[name])
            kept = {
                number: log for number, log in logs[name].items() if number not in slow
            }
            found[name] = dataclasses.replace(
                c,
                logs=kept,
                speedup=variant.over_sets(list(kept.values())),
                tries=c.tries + 1,
            )
    best = decision.best
    return {
        "pick": names[best.record.number],
        "speedup": best.speedup,
        "sets": sets,
    } | {"decided": not decision.open}


@contextmanager
def in_place(variant: Variant) -> Iterator[None]:
    """The product's decision with the variant's numbers."""
    before = candidates_.over_sets, decision_.ZONE, decision_.SETS
    candidates_.over_sets = variant.over_sets
    decision_.ZONE, decision_.SETS = variant.zone, variant.sets
    try:
        yield
    finally:
        candidates_.over_sets, decision_.ZONE, decision_.SETS = before


def scores(world: World, variant: Variant, runs: int) -> dict[str, Any]:
    """What many runs come to."""
    with in_place(variant):
        every = [run(world, variant, draws(world, seed)) for seed in range(runs)]
    told = [r for r in every if r["pick"] != EAGER]

    def held(truth: dict[str, float]) -> list[bool]:
        return [r["speedup"].low <= truth[r["pick"]] <= r["speedup"].high for r in told]

    return {
        "errors": [abs(r["speedup"].value / world.truth[r["pick"]] - 1) for r in told],
        "held": held(world.truth),
        "held_mean": held(world.mean),
        "widths": [r["speedup"].half_width for r in told],
        "right": [r["pick"] in world.best for r in every],
        # How much slower the pick really is than the best.
        "regrets": [
            max(world.truth.values()) / world.truth[r["pick"]] - 1 for r in every
        ],
        "decided": [r["decided"] for r in every],
        "sets": [r["sets"] for r in every],
    }


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Several worlds together."""

    def every(name: str) -> np.ndarray:
        return np.array([value for one in found for value in one[name]], dtype=float)

    errors = every("errors")
    numbers = {
        "error_median": np.median(errors),
        "error_95": np.quantile(errors, 0.95),
        "coverage": every("held").mean(),
        "coverage_of_mean": every("held_mean").mean(),
        "half_width": np.median(every("widths")),
        "right": every("right").mean(),
        "regret_mean": every("regrets").mean(),
        "decided": every("decided").mean(),
        "sets": every("sets").mean(),
    }
    return {name: round(float(value), 5) for name, value in numbers.items()}


def check() -> None:
    """The rule as it is here is the product's."""
    draw, plain = random.Random(0), Variant()
    for count in (1, 2, 3, 4, 5, 6):
        logs = [draw.gauss(0.2, 0.05) for _ in range(count)]
        ours, theirs = plain.over_sets(logs), over_sets(logs)
        assert math.isclose(ours.low, theirs.low)
        assert math.isclose(ours.high, theirs.high)
        yards = {number: draw.choice((60.0, 62.0, 80.0)) for number in range(count)}
        stubs = [
            dataclasses.replace(
                trial(n, CompileConfig()), race=n, reference_s=us, repeats=1
            )
            for n, us in yards.items()
        ]
        assert plain.left_out(yards) == candidates_.left_out(stubs)


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown: a row for each variant, and in a cell the five figures of a condition."""
    conditions = list(next(iter(found.values())))
    lines = [
        f"| rule | {' | '.join(conditions)} |",
        "|---" * (1 + len(conditions)) + "|",
    ]
    for name, by_condition in found.items():
        cells = [
            f"{100 * s['error_median']:.2f} · {100 * s['error_95']:.1f} · {s['coverage']:.0%} "
            f"· {s['right']:.0%} · {s['decided']:.0%} · {s['sets']:.1f}".replace(
                "%", ""
            )
            for s in by_condition.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def save(path: Path, parts: dict[str, dict[str, Any]], runs: int) -> None:
    """One variant in a line."""
    text = []
    for name, variants in parts.items():
        lines = [f"{json.dumps(v)}: {json.dumps(seen)}" for v, seen in variants.items()]
        text.append(f'"{name}": {{\n' + ",\n".join(lines) + "\n}")
    path.write_text(f'{{"schema": 1, "runs": {runs},\n' + ",\n".join(text) + "}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=200, help="of each model and condition"
    )
    parser.add_argument("--out", type=Path, default=HERE / "replay.json")
    parser.add_argument(
        "--only", default="", help="variants with this in their name, and the rule"
    )
    parser.add_argument(
        "--table", action="store_true", help="of what is recorded; runs nothing"
    )
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(args.out.read_text())["by_condition"]))
        return
    check()
    every, found, each = list(worlds()), {}, {}
    conditions = list(dict.fromkeys(world.condition for world in every))
    for name, variant in VARIANTS.items():
        if args.only not in name and name != next(iter(VARIANTS)):
            continue
        seen = [scores(world, variant, args.runs) for world in every]
        each[name] = {
            f"{world.condition}, {world.name}": summary([one])
            for world, one in zip(every, seen, strict=True)
        }
        found[name] = {
            condition: summary(
                [
                    one
                    for w, one in zip(every, seen, strict=True)
                    if w.condition == condition
                ]
            )
            for condition in conditions
        }
    print(table(found))
    save(args.out, {"by_condition": found, "by_model": each}, args.runs)


if __name__ == "__main__":
    main()
