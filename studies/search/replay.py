"""Replay recorded tables: how good is what a sampler has found after so many seconds?

Every sampler runs under plain ``study.optimize`` with the same objective: the recorded speed-up of
a setting, with the noise of one process. The clock moves by the recorded seconds of its trial (two
trials side by side on two cores: a quarter faster). For each model the prior is learned from the
tables of all other models. Regret is how much slower the setting that looks best is than the best
of the table, by the figures of all sets.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import optuna

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "studies/search")]

from learn import learn, tables  # noqa: E402

from autocompile.config import CompileConfig  # noqa: E402
from autocompile.search.effects import Prior  # noqa: E402
from autocompile.search.sampler import FiniteSampler, PortfolioSampler, make_sampler  # noqa: E402
from autocompile.search.space import Setting  # noqa: E402

TIMES_S = (60.0, 120.0, 300.0)
SIDE_BY_SIDE = 1.25  # what two jobs on two cores gain (studies/tuning_cost)
STRATEGIES = ("portfolio", "tpe", "gp", "random", "list")
WITHIN = 0.02


class ListSampler(FiniteSampler):
    """The settings in the order of the list."""

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return self.params(self.left(study)[0])


def rows_of(path: Path) -> tuple[dict[Setting, dict[str, Any]], dict[str, Any]]:
    """The rows of a table by setting, and what is said of the model."""
    data = json.loads(path.read_text())
    found = {}
    for row in data["rows"]:
        config = CompileConfig.from_dict(row["config"])
        found[Setting(config, row["batch_size"], data["phase"])] = row
    return found, data


def whole(row: dict[str, Any], calls: int | None) -> float:
    """The speed-up of a row, with what new weights cost."""
    speedup = math.exp(row["log_speedup"])
    if not row.get("refresh_s") or not calls:
        return speedup
    eager_s = 1e-6 * float(np.median([t for s in row["sets"] for t in s.get("eager_s", ())]))
    return 1 / (1 / speedup + row["refresh_s"] / calls / eager_s)


def spread(row: dict[str, Any]) -> float:
    """How far processes are apart, as the standard deviation of a logarithm."""
    logs = [
        float(np.median(np.log(np.divide(s["eager_s"], s["compiled_s"]))))
        for s in row["sets"]
        if s.get("eager_s")
    ]
    return max(0.005, float(np.std(logs, ddof=1))) if len(logs) > 1 else 0.02


class _TimeIsUp(Exception):
    pass


def replay(
    path: Path, strategy: str, seed: int, prior: dict[str, Any]
) -> list[tuple[float, float]]:
    """After each trial: seconds so far, and the regret of what looks best, over all batch sizes."""
    rows, data = rows_of(path)
    phase = data["phase"]
    known = prior.get(data["kind"]) or prior.get("/".join(data["kind"].split("/")[:2]))
    priors = {phase: Prior(**known) if known else Prior()}
    listed = list(rows)
    sampler: PortfolioSampler | FiniteSampler
    if strategy == "list":
        sampler = ListSampler(listed, optuna.samplers.RandomSampler(seed=seed), seed)
    else:
        sampler = make_sampler(strategy, listed, priors, {}, seed)
    random = np.random.default_rng(seed)
    truth = {
        s: whole(r, data["calls_per_update"])
        if r["outcome"] == "ok" and r["log_speedup"] is not None
        else 0.0
        for s, r in rows.items()
    }
    best = {
        cell: max(t for s, t in truth.items() if s.cell == cell) for cell in {s.cell for s in rows}
    }
    looks: dict[Any, tuple[float, float]] = {cell: (1.0, 1.0) for cell in best}
    path_: list[tuple[float, float]] = []
    clock = 0.0

    def objective(trial: optuna.Trial) -> float:
        nonlocal clock
        params = {
            name: trial.suggest_categorical(name, d.choices)
            for name, d in sampler.distributions.items()
        }
        setting = sampler.setting(params)
        row = rows[setting]
        clock += row["seconds"] / SIDE_BY_SIDE
        trial.set_user_attr("seconds", row["seconds"])
        trial.set_user_attr("outcome", row["outcome"])
        trial.set_user_attr("message", row["message"])
        if truth[setting] <= 0:
            path_.append((clock, regret()))
            raise optuna.TrialPruned
        seen = truth[setting] * math.exp(random.normal(0, spread(row)))
        if setting.config.is_plain_eager:
            seen = 1.0
        if seen > looks[setting.cell][0]:
            looks[setting.cell] = seen, truth[setting]
        path_.append((clock, regret()))
        if clock > max(TIMES_S):
            raise _TimeIsUp
        return seen

    def regret() -> float:
        return float(np.mean([1 - looks[cell][1] / best[cell] for cell in best]))

    study = optuna.create_study(sampler=sampler, direction="maximize")
    try:
        while sampler.has_next(study):
            study.optimize(objective, n_trials=1)
    except _TimeIsUp:
        pass
    return path_


def at(path: list[tuple[float, float]], seconds: float) -> float:
    """The regret at a time; before the first trial it is that of eager."""
    done = [regret for clock, regret in path if clock <= seconds]
    return done[-1] if done else path[0][1] if path else 1.0


def found_after(path: list[tuple[float, float]]) -> float:
    """Seconds to the first setting within 2 % of the best."""
    return next((clock for clock, regret in path if regret <= WITHIN), math.inf)


def one_model(task: tuple[Path, int, tuple[str, ...]]) -> tuple[str, dict[str, Any]]:
    """All strategies and seeds of a model."""
    path, seeds, strategies = task
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    prior = learn(tables(), without=path.stem)
    found: dict[str, Any] = {}
    for strategy in strategies:
        count = 1 if strategy == "list" else seeds
        paths = [replay(path, strategy, seed, prior) for seed in range(count)]
        found[strategy] = {
            "regret": {str(int(t)): [round(at(p, t), 5) for p in paths] for t in TIMES_S},
            "within_s": [round(found_after(p), 1) for p in paths],
        }
    return path.stem, found


def summary(models: dict[str, Any]) -> dict[str, Any]:
    """Median and 95th percentile over models and seeds, each model weighing the same."""
    found: dict[str, Any] = defaultdict(dict)
    for strategy in STRATEGIES:
        for t in TIMES_S:
            every = []
            for model in models.values():
                if strategy in model:
                    regrets = model[strategy]["regret"][str(int(t))]
                    every += list(np.resize(regrets, 200))
            if every:
                found[strategy][str(int(t))] = {
                    "median": round(100 * float(np.median(every)), 2),
                    "p95": round(100 * float(np.quantile(every, 0.95)), 2),
                    "mean": round(100 * float(np.mean(every)), 2),
                }
        times = [
            s
            for m in models.values()
            if strategy in m
            for s in np.resize(m[strategy]["within_s"], 200)
        ]
        if times:
            found[strategy]["within_2_percent_s"] = round(float(np.median(times)), 1)
    return dict(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    recorded = sorted((ROOT / "studies/search" / options.device / "tables").glob("*.json"))
    strategies = tuple(options.strategies.split(","))
    tasks = [(path, options.seeds, strategies) for path in recorded]
    with ProcessPoolExecutor(2) as pool:
        models = dict(pool.map(one_model, tasks))
    result = {"schema": 1, "seeds": options.seeds, "models": models, "summary": summary(models)}
    out = options.out or ROOT / "studies/search" / options.device / "replay.json"
    out.write_text(json.dumps(result) + "\n")
    for strategy, figures in result["summary"].items():
        print(strategy, json.dumps(figures))
    print(f"{len(models)} models, {time.monotonic() - began:.0f} s")
