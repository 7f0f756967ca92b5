"""Runs the user's RLlib algorithm with and without tuned settings, iterations in turns."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from autocompile.errors import TargetError
from autocompile.protocol.requests import AlgorithmRequest, AlgorithmResult
from autocompile.settings.phases import FORWARD_EXPLORATION, FORWARD_INFERENCE
from autocompile.settings.tuned import TunedSet
from autocompile.store.record import Step
from autocompile.store.targets import split_spec
from autocompile.trial.channel import Channel
from autocompile.trial.measure.timing import timer_of
from autocompile.trial.model.load import import_target

# iterations: with a replay buffer, learning begins after many random steps
_MOST_WARM_UPS = 50


def compare_target(
    request: AlgorithmRequest, channel: Channel, result: AlgorithmResult
) -> None:
    """:func:`compare` for the configuration that a target names."""
    deadline, target = time.monotonic() + request.budget_s, request.header.target
    channel.step(Step.IMPORT)
    module = import_target(target)
    channel.step(Step.BUILD)
    config = _config_of(module, target)
    compare(config, request.tuned, deadline, result, channel.step)


def compare(
    config: Any,
    settings: TunedSet,
    deadline: float,
    result: AlgorithmResult,
    note_step: Callable[[Step], None] = lambda _: None,
) -> None:
    """Build an algorithm with and one without the settings, warm both up, and let them take turns.

    There are two rounds at least, whatever the deadline, which is as ``time.monotonic`` gives it.
    """
    from autocompile.rllib.algorithm import tuned

    if config.env is None:
        raise TargetError(
            "the AlgorithmConfig has no environment, so its algorithm cannot be run",
            hint=".environment('ALE/Breakout-v5') on the config, or an env of yours",
        )
    algorithms: dict[str, Any] = {}
    with _ray_with_room(config), contextlib.ExitStack() as stack:
        note_step(Step.COMPILE)
        for side, its_config in (
            ("untouched", config),
            ("tuned", tuned(config, settings)),
        ):
            began = time.monotonic()
            algorithms[side] = _timed(its_config).build_algo()
            stack.callback(algorithms[side].stop)
            result.warmup_iterations[side] = _warm_up(algorithms[side], deadline)
            result.warmup_s[side] = round(time.monotonic() - began, 3)
        note_step(Step.MEASURE)
        took_s = 0.0
        while len(result.rounds) < 2 or time.monotonic() + took_s < deadline:
            began = time.monotonic()
            # Each goes first in turn, so that a drift of the machine favours neither.
            order = list(algorithms)[:: -1 if len(result.rounds) % 2 else 1]
            turns = {side: _turn(algorithms[side]) for side in order}
            result.active = turns["tuned"].pop("active")
            result.rounds.append(turns)
            took_s = time.monotonic() - began
        result.runners = max(1, config.num_env_runners)


@contextlib.contextmanager
def _ray_with_room(config: Any) -> Iterator[None]:
    """Context in which ray runs and has CPUs and GPUs for two such algorithms."""
    import ray

    # Workers import what this process can import, such as the user's file.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    starts_ray, needed = not ray.is_initialized(), _needed(config)
    if starts_ray:
        cpus = max(1, math.ceil(2 * needed["CPU"]))
        ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    try:
        for name, count in needed.items():  # ray would wait for ever
            if 2 * count > (there := ray.cluster_resources().get(name, 0)):
                raise TargetError(
                    f"the actors of two such algorithms need {2 * count:g} {name}s, "
                    f"and ray has {there:g}",
                    hint="fewer env runners or learners, or fractions of a GPU for each",
                )
        yield
    finally:
        if starts_ray:
            ray.shutdown()


def _needed(config: Any) -> dict[str, float]:
    """CPUs and GPUs that ray keeps for the actors of an algorithm."""
    learners, gpus = config.num_learners, config.num_gpus_per_learner
    cpus = config.num_cpus_per_learner
    if cpus == "auto":
        cpus = 0 if gpus else 1
    aggregators = max(1, learners) * config.num_aggregator_actors_per_learner
    runners = config.num_env_runners
    return {
        "CPU": runners * config.num_cpus_per_env_runner + learners * cpus + aggregators,
        "GPU": runners * config.num_gpus_per_env_runner + learners * gpus,
    }


def _config_of(module: Any, spec: str) -> Any:
    """The AlgorithmConfig that a target names, or that its ``get_model`` gives."""
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    name = split_spec(spec)[1] or "get_model"
    value = getattr(module, name, None)
    value = value() if callable(value) else value
    if not isinstance(value, AlgorithmConfig):
        what = "nothing" if value is None else f"a {type(value).__name__}"
        raise TargetError(
            f"{spec} gives no AlgorithmConfig: {name} is {what}",
            hint="autocompile verify tuned.json --in-algorithm --target PATH:NAME",
        )
    return value


def _timed(config: Any) -> Any:
    """The configuration with env runners and learners that measure their own times."""
    from autocompile.rllib.algorithm import default_runner

    def timed(mixin: type, kind: Any) -> type:
        # Classes made here travel by value to wherever ray makes an actor.
        return type(f"Timed{kind.__name__}", (mixin, kind), {"__module__": __name__})

    config = config.copy(copy_frozen=False)
    runner = config.env_runner_cls or default_runner(config)
    config.env_runners(env_runner_cls=timed(_TimedRunner, runner))
    config._learner_class = timed(_TimedLearner, config.learner_class)
    # Evaluation would fall on some iterations only.
    return config.evaluation(evaluation_interval=None, evaluation_num_env_runners=0)


class _TimedRunner:
    """Mixin of an env runner: measures ``sample`` and the module's forward in it."""

    def make_module(self) -> None:
        super().make_module()  # type: ignore[misc]
        module: Any = self.module  # type: ignore[attr-defined]
        self.spent: Any = Counter()
        for name in (FORWARD_EXPLORATION, FORWARD_INFERENCE):
            if module is not None:
                setattr(module, name, self._timing(getattr(module, name)))

    def sample(self, **kwargs: Any) -> Any:
        began = time.perf_counter()
        episodes = super().sample(**kwargs)  # type: ignore[misc]
        self.spent["sample_s"] += time.perf_counter() - began
        self.spent["steps"] += sum(episode.env_steps() for episode in episodes)
        return episodes

    def _timing(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            output = forward(*args, **kwargs)
            timer_of(torch.device(self._device)).synchronize()  # type: ignore[attr-defined]
            self.spent["forward_s"] += time.perf_counter() - began
            return output

        return timed


class _TimedLearner:
    """Mixin of a learner: measures gradient updates, in whichever thread they run."""

    def build(self) -> None:
        self.spent: Any = Counter()
        super().build()  # type: ignore[misc]

    def _update(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = super()._update(*args, **kwargs)  # type: ignore[misc]
        timer_of(torch.device(self._device)).synchronize()  # type: ignore[attr-defined]
        self.spent["update_s"] += time.perf_counter() - began
        self.spent["updates"] += 1
        return result


def _warm_up(algorithm: Any, deadline: float) -> int:
    """Train until two iterations have sampled with the module and learned; returns how many."""
    learning = 0
    for done in range(1, _MOST_WARM_UPS + 1):
        turn = _turn(algorithm)
        learning += bool(turn.get("forward_s") and turn.get("updates"))
        if learning == 2 or (time.monotonic() > deadline and done > 1):
            break
    if not turn.get("forward_s"):
        raise TargetError(
            f"the algorithm has sampled nothing with its module in {done} iterations",
            "settings of its env runners cannot be compared in it",
            hint="a longer --budget, or fewer random steps before it learns",
        )
    return done


def _turn(algorithm: Any) -> dict[str, Any]:
    """One iteration: its times, and the settings that are active in it."""
    _spent(algorithm)  # drops what was done since the last turn
    began = time.perf_counter()
    result = algorithm.train()
    turn: dict[str, Any] = {"train_s": time.perf_counter() - began, **_spent(algorithm)}
    if "autocompile" in result:
        turn["active"] = result["autocompile"]
    return turn


def _spent(algorithm: Any) -> dict[str, float]:
    """The counts of runners and learners since the last call; waits for calls in progress."""
    counts: Any = Counter()
    parts = algorithm.env_runner_group.foreach_env_runner(_take)
    parts += [answer.get() for answer in algorithm.learner_group.foreach_learner(_take)]
    for part in parts:
        counts.update(part)
    return dict(counts)


def _take(part: Any, **_: Any) -> Any:
    spent, part.spent = part.spent, Counter()
    return spent
