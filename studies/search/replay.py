"""Replay recorded tables: how good is the answer of a sampler after so many seconds?

Every sampler runs under plain ``study.optimize`` with the same objective: the recorded speed-up of
a setting, with the noise of one process. The clock moves by the recorded seconds of its trial (two
trials side by side on two cores: a quarter faster). For each model the prior is learned from the
tables of all other models.

An answer is what a run of so many seconds ends with, the same for every sampler: the four settings
that look best are raced in three sets, or up to six where it is not decided and
there is time, which take the recorded seconds of warm compiles; three sets get at most 40 % of the
time. The sides of a set share its seconds, so its noise is that of a whole recorded set: how far
each side was from its own truth there. Regret is how much slower the winner is than the best of the
table, by the figures of all sets. A search ends where its sampler says so, as in a real run: only
autocompile's does before the end of the list.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "studies/search")]

from learn import learn, recorded, tables  # noqa: E402

from autocompile.estimate.decision import SETS, ZONE  # noqa: E402
from autocompile.estimate.intervals import over_sets  # noqa: E402
from autocompile.search.effects import Prior  # noqa: E402
from autocompile.search.sampler import FiniteSampler, PortfolioSampler, make_sampler  # noqa: E402
from autocompile.settings.config import CompileConfig, Setting  # noqa: E402

TIMES_S = (60, 120, 300)
SIDE_BY_SIDE = 1.25  # what two jobs on two cores gain
STRATEGIES = ("portfolio", "tpe", "random", "list")
WITHIN = 0.02
_FINALISTS, _FOR_RACES = 4, 0.4
_PROCESS_S, _BLOCKS_S = 2.0, 0.5  # of a race: to begin and verify eager; to time a side


class ListSampler(FiniteSampler):
    """The settings in the order of the list, as far as they may begin."""

    def choose(self, study: Any, trial: Any, may_be: Any) -> int:
        return int(may_be[0])


def by_set(row: dict[str, Any], calls: int | None) -> dict[int, float]:
    """The logarithm of the speed-up of each set, with what new weights cost."""
    found = {}
    for one in row["sets"]:
        ratio = one["speedup"]
        if row.get("refresh_s") and calls:
            ratio = 1 / (
                1 / ratio + row["refresh_s"] / calls / (1e-6 * one["eager_us"])
            )
        found[one["set"]] = math.log(ratio)
    return found


def spread(logs: Collection[float]) -> float:
    """How far processes are apart, as the standard deviation of a logarithm."""
    return max(0.005, float(np.std(list(logs), ddof=1))) if len(logs) > 1 else 0.02


class _TimeIsUp(Exception):
    pass


@dataclass(frozen=True)
class Tried:
    """A trial of the search: when it ended, and the speed-up that it showed; None if it failed.

    Attributes:
        is_open: what was not tried then may be worth its seconds, by the sampler's own word.
    """

    clock: float
    setting: Setting
    seen: float | None
    is_open: bool = True


class Table:
    """What was recorded of a model: the true speed-up of each setting, its noise and its cost."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.phase, self.kind = data["phase"], data["kind"]
        self.rows: dict[Setting, dict[str, Any]] = {}
        for row in data["rows"]:
            config = CompileConfig.from_dict(row["config"], self.phase)
            self.rows[Setting(config, row["batch_size"], self.phase)] = row
        worked = {s: r for s, r in self.rows.items() if r["outcome"] == "ok"}
        calls = data["calls_per_update"]
        self.logs = {s: by_set(r, calls) for s, r in worked.items()}
        (eager,) = (s for s in worked if s.config.is_plain_eager)
        self.logs[eager] = dict.fromkeys(self.logs[eager], 0.0)  # its own baseline
        medians = {s: np.median(list(logs.values())) for s, logs in self.logs.items()}
        self.truth = {s: math.exp(log) for s, log in medians.items()}
        self.sets = sorted({number for logs in self.logs.values() for number in logs})
        self.spread = {s: spread(logs.values()) for s, logs in self.logs.items()}
        self.eager = eager
        self.best = max(self.truth.values())
        self.beside_s = {s: _BLOCKS_S + warm_s(r) for s, r in worked.items()}

    def look(self, setting: Setting, random: np.random.Generator) -> float:
        """Its speed-up as one process shows it."""
        noise = (
            0.0
            if setting.config.is_plain_eager
            else random.normal(0, self.spread[setting])
        )
        return self.truth[setting] * math.exp(noise)

    def race(
        self, settings: list[Setting], most: int, random: np.random.Generator
    ) -> Setting:
        """The winner of three to ``most`` sets, as many as it takes until nothing may be better.

        A set has the noise of a recorded one, or its mirror image.
        """
        seen: dict[Setting, list[float]] = {s: [] for s in settings}
        for count in range(1, most + 1):
            number, sign = random.choice(self.sets), random.choice((-1.0, 1.0))
            for setting, logs in seen.items():
                noise = sign * self.noise(setting, number, random)
                logs.append(math.log(self.truth[setting]) + noise)
            best = max(settings, key=lambda s: float(np.mean(seen[s])))
            rivals = [
                np.subtract(seen[s], seen[best]).tolist() for s in settings if s != best
            ]
            if count >= SETS[0] and all(over_sets(r).high <= 1 + ZONE for r in rivals):
                break
        return best

    def noise(
        self, setting: Setting, number: int, random: np.random.Generator
    ) -> float:
        """How far a setting was from its truth in a set, as a logarithm."""
        logs = self.logs[setting]
        if number not in logs:  # it had failed there
            return float(random.normal(0, self.spread[setting]))
        lost = math.sqrt(
            len(logs) / max(1, len(logs) - 1)
        )  # the truth is made of the same sets
        return lost * (logs[number] - math.log(self.truth[setting]))

    def regret(self, chosen: Setting) -> float:
        """How much slower it is than the best."""
        return 1 - self.truth[chosen] / self.best


def warm_s(row: dict[str, Any]) -> float:
    """Seconds of a compile from a warm cache; as a third of a cold one where it is not known."""
    seen = [
        s["warm_compile_s"] for s in row["sets"] if s.get("warm_compile_s") is not None
    ]
    return float(np.median(seen)) if seen else row.get("compile_s", 0.0) / 3


def answer(
    table: Table, tried: list[Tried], seconds: float, random: np.random.Generator
) -> tuple[float, bool]:
    """The regret of a run of so many seconds, and whether it is called sure."""
    ends = [0.0] + [t.clock for t in tried if t.clock <= seconds]
    for end in reversed(ends):  # the last trial after which there is time for the races
        seen = [t for t in tried if t.clock <= end and t.seen is not None]
        leaders = [t.setting for t in sorted(seen, key=lambda t: -(t.seen or 0.0))]
        leaders = leaders[:_FINALISTS]
        races_s = SETS[0] * set_s(table, leaders) if leaders else 0.0
        if end + min(_FOR_RACES * seconds, races_s) <= seconds:
            break
    if not leaders:
        return table.regret(table.eager), False
    left_s = seconds - end
    if left_s < races_s:
        return table.regret(leaders[0]), False  # not confirmed
    most = min(SETS[1], int(left_s / set_s(table, leaders)))
    chosen = table.race(leaders, max(most, SETS[0]), random)
    return table.regret(chosen), any(t.clock == end and not t.is_open for t in tried)


def set_s(table: Table, settings: list[Setting]) -> float:
    """Seconds of a set: a process, and its sides one after the other."""
    return _PROCESS_S + sum(table.beside_s[s] for s in settings)


def replay(
    table: Table, strategy: str, seed: int, prior: dict[str, Any]
) -> list[Tried]:
    """The trials of a search, until the longest time is over."""
    known = prior.get(table.kind) or prior.get("/".join(table.kind.split("/")[:2]))
    priors = {table.phase: Prior(**known) if known else Prior()}
    listed = list(table.rows)
    sampler: PortfolioSampler | FiniteSampler
    if strategy == "list":
        sampler = ListSampler(listed, optuna.samplers.RandomSampler(seed=seed), seed)
    else:
        sampler = make_sampler(strategy, listed, priors, {}, seed)
    is_ours = isinstance(sampler, PortfolioSampler)
    random = np.random.default_rng(seed)
    tried: list[Tried] = []
    clock = 0.0

    def objective(trial: optuna.Trial) -> float:
        nonlocal clock
        params = {
            name: trial.suggest_categorical(name, d.choices)
            for name, d in sampler.distributions.items()
        }
        setting = sampler.setting(params)
        row = table.rows[setting]
        clock += row["seconds"] / SIDE_BY_SIDE
        if clock > max(TIMES_S):
            raise _TimeIsUp
        trial.set_user_attr("seconds", row["seconds"])
        trial.set_user_attr("outcome", row["outcome"])
        trial.set_user_attr("message", row.get("message", ""))
        seen = table.look(setting, random) if setting in table.truth else None
        tried.append(Tried(clock, setting, seen))
        if seen is None:
            raise optuna.TrialPruned
        return seen

    study = optuna.create_study(sampler=sampler, direction="maximize")
    try:
        while not sampler.is_done(study):
            study.optimize(objective, n_trials=1)
            if is_ours:
                tried[-1] = replace(tried[-1], is_open=bool(sampler.rest(study)))
    except _TimeIsUp:
        pass
    return tried


def found_after(table: Table, tried: list[Tried]) -> float:
    """Seconds of trials until a setting within 2 % of the best was tried."""
    for each in tried:
        if each.seen and table.regret(each.setting) <= WITHIN:
            return each.clock
    return math.inf


def replayed(task: tuple[str, str, int]) -> dict[str, Any]:
    """All seeds of a model and a strategy."""
    model, strategy, seeds = task
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    table, prior = Table(tables("search", "cpu")[model]), learn(recorded(), model)
    runs = [replay(table, strategy, seed, prior) for seed in range(seeds)]
    regret, sure = {}, {}
    for t in TIMES_S:
        random = [np.random.default_rng([seed, t]) for seed in range(seeds)]
        found = [answer(table, one, t, r) for one, r in zip(runs, random, strict=True)]
        regret[str(t)] = [round(lost, 4) for lost, _ in found]
        sure[str(t)] = [int(is_sure) for _, is_sure in found]
    within_s = [round(found_after(table, tried), 1) for tried in runs]
    told = {"sure": sure} if strategy == "portfolio" else {}  # the others never are
    return {"regret": regret, **told, "within_s": within_s}


def summary(models: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of each strategy median and 95th percentile in percent, over all models and seeds."""
    found: dict[str, Any] = {}
    for strategy in STRATEGIES:
        have = [model[strategy] for model in models.values()]
        within = [seconds for one in have for seconds in one["within_s"]]
        found[strategy] = {"within_2_percent_s": round(float(np.median(within)), 1)}
        for t in map(str, TIMES_S):
            lost = np.array([regret for one in have for regret in one["regret"][t]])
            found[strategy][t] = {
                "median": round(100 * float(np.median(lost)), 1),
                "p95": round(100 * float(np.quantile(lost, 0.95)), 1),
            }
            if strategy == "portfolio":
                is_sure = [sure for one in have for sure in one["sure"][t]]
                right = np.mean(lost[np.array(is_sure) == 1] <= WITHIN)
                found[strategy][t]["sure_and_right"] = round(100 * float(right), 1)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--to", type=Path, default=Path(__file__).parent / "replay.json"
    )
    options = parser.parse_args()
    names = list(tables("search", "cpu"))
    tasks = [(name, each, options.seeds) for each in STRATEGIES for name in names]
    models: dict[str, dict[str, Any]] = {name: {} for name in names}
    with ProcessPoolExecutor(options.jobs) as pool:
        for (name, strategy, _), found in zip(
            tasks, pool.map(replayed, tasks), strict=True
        ):
            models[name][strategy] = found
    lines = [f'  "{name}": {json.dumps(found)}' for name, found in models.items()]
    every = ",\n".join(lines)
    options.to.write_text(
        f'{{"seeds": {options.seeds},\n "models": {{\n{every}\n }}\n}}\n'
    )
    for strategy, figures in summary(models).items():
        print(strategy, json.dumps(figures))
