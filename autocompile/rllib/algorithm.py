"""Makes RLlib's env runners and learners use tuned settings and report them in each result.

Tested with ray 2.50 and 2.60, new API stack. ray's ``torch_compile_*`` fields do not reach env
runners and carry no memory format, optimizer or frozen weights. So the classes of env runner and
learner are extended: ray builds them in every process, and again after a restart.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from typing import Any

from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner
from ray.rllib.utils import force_list

from autocompile.errors import UsageError
from autocompile.rllib.actors import TunedLearner, TunedRunner, demand_usable
from autocompile.settings.phases import LEARNER_UPDATE
from autocompile.settings.tuned import TunedSet

_ANSWER_S = 30.0  # timeout for the answer of a runner or learner
_AGAIN_S = 10.0  # minimum time between two queries


class NotInEffect(RuntimeError):
    """A requested setting is not in effect."""


def tuned(
    config: Any, settings: Any, *, strict: bool = True, keep_memory: bool = True
) -> Any:
    """A copy of an RLlib configuration whose env runners and learners use tuned settings.

    Env runners compile and warm up when they are built, for their number of environments, or with
    several agents at their first step. Learners compile at their first update. Each result of
    ``train()`` lists the active settings under ``autocompile``.

    Args:
        config: an AlgorithmConfig of the new API stack; not changed.
        settings: a file written by ``autocompile export -o``, or a Result. Of a file with entries
            of several machines, each process takes the one that fits its device.
        strict: if True, ``train()`` raises :class:`NotInEffect` when a setting failed or captured
            no graph, or a runner uses no settings. If False, it warns. A failed setting runs in
            eager mode.
        keep_memory: on a CPU have glibc keep what is freed, as in the measurement.

    Raises:
        UsageError: no entry is for an RLModule and this interpreter, or the configuration uses the
            old API stack. A process whose own entry is not usable raises it when it is built.
    """
    tuned_set = TunedSet.read(settings)
    for entry in tuned_set.entries:
        # One is enough here: each process takes the entry of its own device.
        with contextlib.suppress(UsageError):
            demand_usable(entry)
            break
    else:
        demand_usable(tuned_set.entries[0])
    if not (
        config.enable_rl_module_and_learner
        and config.enable_env_runner_and_connector_v2
    ):
        raise UsageError(
            f"this {type(config).__name__} uses RLlib's old API stack, which is not supported",
            hint="config.api_stack(enable_rl_module_and_learner=True, "
            "enable_env_runner_and_connector_v2=True)",
        )
    learners = max(1, config.num_learners)
    of_updates = [e for e in tuned_set.entries if LEARNER_UPDATE in e.phases]
    warned = [entry.of_other_ranks(learners) for entry in of_updates]
    if warned and all(warned):
        warnings.warn(warned[0], stacklevel=2)
    config = config.copy(copy_frozen=False)
    runner = config.env_runner_cls or default_runner(config)
    extended = functools.partial(
        _extended, settings=tuned_set, keeps_memory=keep_memory
    )
    config.env_runners(env_runner_cls=extended(TunedRunner, runner))
    # Ray's versions set this by different methods, and each warns of the other's.
    config._learner_class = extended(TunedLearner, config.learner_class)
    config.framework("torch", torch_compile_learner=False, torch_compile_worker=False)
    others = [
        f
        for f in force_list(config.callbacks_on_train_result)
        if not isinstance(f, Tell)
    ]
    config.callbacks(on_train_result=[*others, Tell(strict)])
    return config


def default_runner(config: Any) -> type:
    """The env runner class that RLlib uses by default."""
    if config.output:
        return OfflineSingleAgentEnvRunner  # type: ignore[no-any-return]
    several: type = MultiAgentEnvRunner
    return several if config.is_multi_agent else SingleAgentEnvRunner


def _extended(mixin: type, base: type, settings: TunedSet, keeps_memory: bool) -> type:
    """A subclass that holds the settings; ray pickles it by value to each actor."""
    base = vars(base).get("untuned", base)
    members = {"tuned_set": settings, "keeps_memory": keeps_memory, "untuned": base}
    members["__module__"] = __name__
    return type(f"Tuned{base.__name__}", (mixin, base), members)


class Tell:
    """An ``on_train_result`` callback that adds the active settings to each result.

    In an asynchronous algorithm a runner answers only between two samples, which takes time, so
    runners are queried every ten seconds at most.
    """

    def __init__(self, strict: bool) -> None:
        self._strict, self._asked_s = strict, 0.0
        self._active: dict[str, list[dict[str, Any]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tell, (self._strict,))

    def __call__(self, *, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
        groups = {
            "env_runners": algorithm.env_runner_group,
            "eval_runners": algorithm.eval_env_runner_group,
        }
        groups = {name: group for name, group in groups.items() if group is not None}
        if not self._active or time.monotonic() - self._asked_s > _AGAIN_S:
            self._active = _ask(groups, algorithm.learner_group)
            self._asked_s = time.monotonic()
        result["autocompile"] = self._active
        every = [one for part in self._active.values() for one in part]
        problems = "; ".join(dict.fromkeys(p for one in every for p in one["problems"]))
        if problems and self._strict:
            hint = "tuned(config, settings, strict=False) goes on without it"
            raise NotInEffect(f"{problems}. {hint}")
        if problems:
            warnings.warn(problems, stacklevel=2)


def _ask(groups: dict[str, Any], learners: Any) -> dict[str, list[dict[str, Any]]]:
    """The answers of the processes that are not too busy; none at all is a problem."""
    active = {}
    for name, group in groups.items():
        answers = group.foreach_env_runner(_active_in_runner, timeout_seconds=_ANSWER_S)
        active[name] = [one for one in answers if one]
        # Counted afterwards: ray knows of a runner that has died since, and restarts it.
        if not answers and group.num_healthy_env_runners():
            active[name] = [_problem(f"none of the {name.replace('_', ' ')} answered")]
    of_learners = learners.foreach_learner(
        lambda learner, **_: learner.tell_active(), timeout_seconds=_ANSWER_S
    )
    answers = [answer.get() for answer in of_learners if answer.ok]
    active["learners"] = answers or [_problem("none of the learners answered")]
    return active


def _problem(words: str) -> dict[str, Any]:
    return {"settings": {}, "problems": [words]}


def _active_in_runner(runner: Any) -> dict[str, Any] | None:
    if not hasattr(runner, "tell_active"):
        return _problem(f"a {type(runner).__name__} uses no settings")
    return runner.tell_active() if runner.env is not None else None
