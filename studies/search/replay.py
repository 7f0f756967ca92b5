"""Replay recorded tables: how good is the answer of a sampler after so many seconds?

Every sampler runs under plain ``study.optimize`` with the same objective: the recorded speed-up of
a setting, with the noise of one process. The clock moves by the recorded seconds of its trial (two
trials side by side on two cores: a quarter faster). For each model the prior is learned from the
tables of all other models.

An answer is what a run of so many seconds ends with, the same for every sampler: the four settings
of each batch size that look best are raced in three sets, or up to six where it is not decided and
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
import time
from collections import defaultdict
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "studies/search")]

from learn import learn, tables  # noqa: E402

from autocompile.estimate.decision import SETS, ZONE  # noqa: E402
from autocompile.estimate.intervals import over_sets  # noqa: E402
from autocompile.search.effects import Prior  # noqa: E402
from autocompile.search.sampler import FiniteSampler, PortfolioSampler, make_sampler  # noqa: E402
from autocompile.settings.config import CompileConfig, Setting  # noqa: E402

TIMES_S = tuple(float(t) for t in range(20, 301, 20))
SIDE_BY_SIDE = 1.25  # what two jobs on two cores gain
STRATEGIES = ("portfolio", "tpe", "random", "list")
WITHIN = 0.02
_FINALISTS, _FOR_RACES = 4, 0.4
_PROCESS_S, _BLOCKS_S = 2.0, 0.5  # of a race: to begin and verify eager; to time a side


class ListSampler(FiniteSampler):
    """The settings in the order of the list, as far as they may begin."""

    def choose(self, study: Any, trial: Any, may_be: Any) -> int:
        return int(may_be[0])


def rows_of(path: Path) -> tuple[dict[Setting, dict[str, Any]], dict[str, Any]]:
    """The rows of a table by setting, and what is said of the model."""
    data = json.loads(path.read_text())
    found = {}
    for row in data["rows"]:
        config = CompileConfig.from_dict(row["config"], data["phase"])
        found[Setting(config, row["batch_size"], data["phase"])] = row
    return found, data


def by_set(row: dict[str, Any], calls: int | None) -> dict[int, float]:
    """The logarithm of the speed-up of each set, with what new weights cost."""
    found = {}
    for one in row["sets"]:
        if one.get("eager_s"):
            ratio = float(np.median(np.divide(one["eager_s"], one["compiled_s"])))
            if row.get("refresh_s") and calls:
                eager_s = 1e-6 * float(np.median(one["eager_s"]))
                ratio = 1 / (1 / ratio + row["refresh_s"] / calls / eager_s)
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
        looks: it is one of those that stand for a family.
    """

    clock: float
    setting: Setting
    seen: float | None
    is_open: bool = True
    looks: bool = False


class Table:
    """What was recorded of a model: the true speed-up of each setting, its noise and its cost."""

    def __init__(self, path: Path) -> None:
        self.rows, data = rows_of(path)
        self.phase, self.kind = data["phase"], data["kind"]
        calls = data["calls_per_update"]
        worked = {
            s: r
            for s, r in self.rows.items()
            if r["outcome"] == "ok" and r["log_speedup"] is not None
        }
        self.logs = {s: by_set(r, calls) for s, r in worked.items()}
        for setting, logs in self.logs.items():
            if setting.config.is_plain_eager:
                logs.update(dict.fromkeys(logs, 0.0))  # it is its own baseline
        self.truth = {
            s: math.exp(np.median(list(logs.values()))) for s, logs in self.logs.items()
        }
        self.sets = sorted({number for logs in self.logs.values() for number in logs})
        self.spread = {s: spread(logs.values()) for s, logs in self.logs.items()}
        self.cells = sorted({s.cell for s in self.rows}, key=str)
        self.best = {
            c: max((s for s in self.truth if s.cell == c), key=self.truth.__getitem__)
            for c in self.cells
        }
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

    def regret(self, chosen: dict[Any, Setting]) -> float:
        """Over all batch sizes; where nothing was chosen it is eager's."""
        eager = {s.cell: s for s in self.truth if s.config.is_plain_eager}
        got = [
            self.truth[chosen.get(c, eager[c])] / self.truth[self.best[c]]
            for c in self.cells
        ]
        return 1 - float(np.mean(got))


def warm_s(row: dict[str, Any]) -> float:
    """Seconds of a compile from a warm cache; as a third of a cold one where it is not known."""
    seen = [
        s["warm_compile_s"] for s in row["sets"] if s.get("warm_compile_s") is not None
    ]
    return float(np.median(seen)) if seen else (row["compile_s"] or 0.0) / 3


def leaders(tried: list[Tried]) -> dict[Any, list[Setting]]:
    """Of each batch size what looks best, best first."""
    found: dict[Any, list[tuple[float, Setting]]] = defaultdict(list)
    for each in tried:
        if each.seen is not None:
            found[each.setting.cell].append((each.seen, each.setting))
    return {
        c: [s for _, s in sorted(v, key=lambda p: -p[0])][:_FINALISTS]
        for c, v in found.items()
    }


def answer(
    table: Table, tried: list[Tried], seconds: float, random: np.random.Generator
) -> tuple[float, bool]:
    """The regret of a run of so many seconds, and whether it is called sure."""
    ends = [0.0] + [t.clock for t in tried if t.clock <= seconds]
    needs = 0.0
    for end in reversed(ends):  # the last trial after which there is time for the races
        found = leaders([t for t in tried if t.clock <= end])
        needs = sum(set_s(table, settings) for settings in found.values())
        if end + min(_FOR_RACES * seconds, SETS[0] * needs) <= seconds:
            break
    is_sure = any(t.clock == end and not t.is_open for t in tried)
    chosen, left_s = {}, seconds - end
    for cell, settings in found.items():
        chosen[cell] = settings[0]
        each_s = set_s(table, settings)
        if left_s >= SETS[0] * each_s:
            most = min(SETS[1], int(left_s / each_s / len(found)))
            chosen[cell] = table.race(settings, max(most, SETS[0]), random)
            left_s -= SETS[0] * each_s
        else:
            is_sure = False  # not confirmed
    return table.regret(chosen), is_sure


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
        trial.set_user_attr("message", row["message"])
        seen = table.look(setting, random) if setting in table.truth else None
        looks = is_ours and bool(sampler._is_look[sampler.settings.index(setting)])
        tried.append(Tried(clock, setting, seen, looks=looks))
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
    """Seconds of trials until at each batch size a setting within 2 % of the best was tried."""
    missing = set(table.cells)
    for each in tried:
        cell = each.setting.cell
        if (
            each.seen
            and table.truth[each.setting]
            >= (1 - WITHIN) * table.truth[table.best[cell]]
        ):
            missing.discard(cell)
        if not missing:
            return each.clock
    return math.inf


def replayed(task: tuple[Path, str, int]) -> tuple[str, str, dict[str, Any]]:
    """All seeds of a model and a strategy."""
    path, strategy, seeds = task
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    table, prior = Table(path), learn(tables(), without=path.stem)
    runs = [replay(table, strategy, seed, prior) for seed in range(seeds)]
    regret, sure = {}, {}
    for t in TIMES_S:
        random = [np.random.default_rng([seed, int(t)]) for seed in range(seeds)]
        found = [answer(table, one, t, r) for one, r in zip(runs, random, strict=True)]
        regret[str(int(t))] = [round(lost, 5) for lost, _ in found]
        sure[str(int(t))] = [int(is_sure) for _, is_sure in found]
    within = [round(found_after(table, tried), 1) for tried in runs]
    looked = [
        round(max((t.clock for t in one if t.looks), default=0.0), 1) for one in runs
    ]
    kept = {"regret": regret, "sure": sure, "within_s": within, "looked_s": looked}
    return path.stem, strategy, kept


def summary(models: dict[str, Any]) -> dict[str, Any]:
    """Median and 95th percentile over models and seeds, each model weighing the same."""
    found: dict[str, Any] = defaultdict(dict)
    for strategy in STRATEGIES:
        have = [m[strategy] for m in models.values() if strategy in m]
        if not have:
            continue
        for t in (str(int(t)) for t in TIMES_S):
            every = [regret for m in have for regret in m["regret"][t]]
            found[strategy][t] = {
                "median": round(100 * float(np.median(every)), 2),
                "p95": round(100 * float(np.quantile(every, 0.95)), 2),
                "mean": round(100 * float(np.mean(every)), 2),
            }
            pairs = [
                pair for m in have if "sure" in m
                for pair in zip(m["regret"][t], m["sure"][t], strict=True)
            ]  # fmt: skip
            if sure := [lost for lost, is_sure in pairs if is_sure]:
                right = sum(lost <= WITHIN for lost in sure) / len(sure)
                found[strategy][t] |= {
                    "sure": round(100 * len(sure) / len(pairs), 1),
                    "sure_and_right": round(100 * right, 1),
                }
        times = [seconds for m in have for seconds in m["within_s"]]
        found[strategy]["within_2_percent_s"] = round(float(np.median(times)), 1)
    return dict(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    recorded = sorted(
        (ROOT / "studies/search" / options.device / "tables").glob("*.json")
    )
    strategies = tuple(options.strategies.split(","))
    tasks = [(path, name, options.seeds) for name in strategies for path in recorded]
    out = options.out or ROOT / "studies/search" / options.device / "replay.json"
    known = json.loads(out.read_text())["models"] if out.exists() else {}
    models: dict[str, Any] = defaultdict(dict, known)  # the other strategies stay
    with ProcessPoolExecutor(options.jobs) as pool:
        for model, strategy, found in pool.map(replayed, tasks):
            models[model][strategy] = found
    result = {
        "schema": 1,
        "seeds": options.seeds,
        "models": models,
        "summary": summary(models),
    }
    out.write_text(json.dumps(result) + "\n")
    for strategy, figures in result["summary"].items():
        shown = {t: figures[t] for t in ("60", "120", "300")}
        print(strategy, json.dumps(shown), figures["within_2_percent_s"])
    print(f"{len(models)} models, {time.monotonic() - began:.0f} s")
