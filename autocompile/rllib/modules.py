"""RLlib targets: an AlgorithmConfig, RLModuleSpec or RLModule, and how its loops call them.

Written against ray 2.50 and 2.60, new API stack.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import os
import textwrap
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any, cast

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.apis import TargetNetworkAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from autocompile.errors import TargetError
from autocompile.rllib import actors, observations, several
from autocompile.rllib.described import RLLIB
from autocompile.rllib.learner import SIZES, LearnerUpdates, minibatch
from autocompile.rllib.several import SeveralModules
from autocompile.settings.phases import (
    FORWARD_EXPLORATION,
    FORWARD_INFERENCE,
    FORWARD_TRAIN,
    LEARNER_UPDATE,
    PHASES,
    TRAIN_STEP,
)
from autocompile.trial.model.calls import Calls
from autocompile.trial.model.target import LibraryCalls, Target

_FIRST_STEP = 1  # so that none is 0 or 1, which Dynamo takes for constants


def _call(model: Any, phase: str, counters: dict[str, Any]) -> Callable[[Any], Any]:
    """The call that env runners and learners make; exploration gets the step count ``t``."""
    method = getattr(model, phase)
    beneath = inspect.signature(getattr(type(model), f"_{phase}")).parameters.values()
    takes_steps = any(p.name == "t" or p.kind is p.VAR_KEYWORD for p in beneath)
    if phase != FORWARD_EXPLORATION or not takes_steps:
        # A module may take things out of its batch.
        return lambda inputs: method(dict(inputs))
    counters["t"] = _FIRST_STEP

    def explore(inputs: Any) -> Any:
        counters["t"] += 1
        return method(dict(inputs), t=counters["t"])

    return explore


_CALLS = LibraryCalls(RLLIB.title, _call, actors.warm_up)


def from_object(value: Any) -> Target:
    """A target from an AlgorithmConfig, an RLModuleSpec or an RLModule."""
    if isinstance(value, torch.nn.Module):
        return _target("RLModule", value)
    if isinstance(value, RLModuleSpec):
        target = _target("RLModuleSpec", value.build())
        target.inference_model = replace(value, inference_only=True).build()
        return target
    if isinstance(value, MultiRLModuleSpec):
        target, _ = _of_kinds(value, several.Rows({}, ""), value.rl_module_specs)
        return target
    if isinstance(value, AlgorithmConfig):
        return _from_several(value) if value.is_multi_agent else _from_config(value)
    raise TargetError(f"RLlib's {type(value).__name__} cannot be tuned")


def _from_config(config: Any) -> Target:
    observations.take_spaces(config)
    module = observations.module_spec(config).build()
    target = _target("AlgorithmConfig", module, config)
    # Env runners build the module without the learner's parts (PPO's value head and encoder). With
    # them, eager exploration would do work that compiling removes, which inflates speed-ups.
    target.inference_model = observations.module_spec(
        config, inference_only=True
    ).build()
    target.choices["exploration"] = "the inference-only module that env runners build"
    target.algorithm = f"{type(config).__module__}:{type(config).__qualname__}"
    lr = config.lr
    if isinstance(lr, (int, float)):
        target.make_optimizer = lambda m: torch.optim.Adam(m.parameters(), lr=lr)
        target.choices["optimizer"] = f"Adam with the config's lr {lr}"
    envs = int(config.num_envs_per_env_runner or 1)
    rows = int(config.minibatch_size or config.train_batch_size_per_learner or 1)
    target.own_batch_size = {
        name: envs if phase.role == "worker" else rows
        for name, phase in PHASES.items()
        if phase.role and phase.has_batch_size
    }
    _take_calls_per_update(config, envs, target)
    _take_threads(config, target)
    _take_evaluation(config, envs, target)
    if config.enable_rl_module_and_learner:
        target.library = replace(
            _CALLS,
            make_updates=lambda model, count: LearnerUpdates(config, model, count),
        )
        if config.minibatch_size or getattr(config, "replay_buffer_config", None):
            target.phase_inputs[LEARNER_UPDATE] = lambda c: minibatch(
                config, module, c or rows
            )
        else:
            _take_whole_batches(config, module, rows, target)
    return target


def _from_several(config: Any) -> Target:
    """A target of the modules of several agents, one of each kind.

    Each is called by itself, and :func:`autocompile.rllib.tuned` compiles each.
    """
    every, rows = several.of_config(config)
    trained = several.trained_of(config, every.rl_module_specs)
    target, size_of = _of_kinds(every, rows, trained)
    target.kind = "AlgorithmConfig"
    target.algorithm = f"{type(config).__module__}:{type(config).__qualname__}"
    target.choices["exploration"] = "the inference-only modules that env runners build"
    target.choices["rows"] = rows.words
    if isinstance(lr := config.lr, (int, float)):
        target.make_optimizer = lambda m: torch.optim.Adam(m.parameters(), lr=lr)
        of_all = isinstance(target.model, SeveralModules)
        words = ", one for all; RLlib has one for each module" if of_all else ""
        target.choices["optimizer"] = f"Adam with the config's lr {lr}{words}"
    learned = int(config.minibatch_size or config.train_batch_size_per_learner or 1)
    target.own_batch_size = {
        name: size_of(rows.envs) if phase.role == "worker" else learned
        for name, phase in PHASES.items()
        if phase.role and phase.has_batch_size and not phase.is_update
    }
    _take_calls_per_update(config, rows.envs, target)
    _take_threads(config, target)
    _take_evaluation(config, rows.envs, target, size_of)
    return target


def _of_kinds(
    every: MultiRLModuleSpec, rows: several.Rows, trained: Container[str]
) -> tuple[Target, Callable[[int], int]]:
    """A target of one module of each kind that a runner calls: of one kind that module, else all as
    one. And what its batch size is for so many environments.
    """
    kinds = several.one_of_each(every, trained, rows)
    built = {name: spec.build() for name, spec in kinds.items()}
    for_inference = {
        name: replace(spec, inference_only=True).build() for name, spec in kinds.items()
    }
    for name, module in built.items():
        if name not in trained:
            module.requires_grad_(False)
    if len(kinds) == 1:
        ((name, module),) = built.items()
        target = _target("MultiRLModuleSpec", module)
        target.inference_model = for_inference[name]
        size_of: Callable[[int], int] = functools.partial(rows.given, name)
    else:
        whole = SeveralModules(built, filter(trained.__contains__, built))
        target = _target_of_several(whole, rows)
        target.inference_model = SeveralModules(for_inference, ())
        size_of = int
    target.choices["module"] = several.which_are_tuned(kinds, every, rows)
    return target, size_of


def _target_of_several(module: SeveralModules, rows: several.Rows) -> Target:
    """A target of modules of several kinds; the batch size of runners counts environments."""

    def make_inputs(count: int | None) -> dict[str, Any]:
        return {
            name: observations.made_up_batch(part, rows.given(name, count or 1))
            for name, part in module.parts.items()
        }

    def make_training_inputs(count: int | None) -> dict[str, Any]:
        return {
            name: _transitions(module.parts[name], count or 1)
            for name in module.names
            if name in module.trained
        }

    def start(model: Any, phase: str, count: int) -> bool:
        return all(
            actors.warm_up(part, phase, rows.given(name, count))
            for name, part in model.parts.items()
        )

    library = replace(_CALLS, start=start)
    target = Target("MultiRLModuleSpec", module, make_inputs, library=library)
    _take_training(target, make_training_inputs, [*module.parts.values()])
    target.choices["inputs"] = "drawn from the spaces of " + ", ".join(module.names)
    target.choices["batch size"] = "environments, of a learner rows of each module"
    return target


def _take_whole_batches(config: Any, module: Any, rows: int, target: Target) -> None:
    """Make a pass of updates of several sizes, for an algorithm that learns whole train batches.

    Connectors add a row to each episode, so PPO without minibatches, IMPALA and APPO have another
    number of rows in almost every update (200 steps of CartPole: 204 to 216). With minibatches all
    have their size, since ``MiniBatchCyclicIterator`` begins anew where the batch ends: there is no
    smaller last one. Nor is there in a sample of a replay buffer.
    """
    # As of each workload, of a pass.
    target.own_batch_size[LEARNER_UPDATE] = rows * SIZES

    def make_calls(count: int | None) -> Calls:
        steps = max(2, (count or rows * SIZES) // SIZES)
        return Calls(minibatch(config, module, steps, n) for n in range(1, SIZES + 1))

    target.phase_inputs[LEARNER_UPDATE] = make_calls
    target.choices["updates"] = (
        "whole train batches, whose rows differ with the episodes in them"
    )


def _take_evaluation(
    config: Any, envs: int, target: Target, size_of: Callable[[int], int] = int
) -> None:
    """What evaluation runners do in a phase that is not that of sampling is measured as there.

    They have a module of their own, which :func:`autocompile.rllib.tuned` compiles for itself, also
    in the process that samples. So each program has one batch size, its runner's environments, or
    what ``size_of`` makes of their number.
    """
    if not (config.evaluation_interval or config.evaluation_num_env_runners):
        return  # ``Algorithm.evaluate`` then samples with the runner of training
    evaluation = config.get_evaluation_config_object()
    phase, sampling = _phase_of(evaluation), _phase_of(config)
    its_envs = int(evaluation.num_envs_per_env_runner or 1)
    if phase != sampling:
        target.own_batch_size[phase] = size_of(its_envs)
        target.threads.pop(phase, None)
        _take_threads_of(
            "evaluation runner",
            evaluation.num_env_runners,
            evaluation.num_cpus_per_env_runner,
            [phase],
            target,
        )
    elif its_envs != envs:
        target.choices["evaluation"] = (
            f"{its_envs} environments in {phase}, a program of its own: "
            f"--batch-size {size_of(envs)},{size_of(its_envs)} tunes both"
        )


def _phase_of(config: Any) -> str:
    """What its env runners call, as ``SingleAgentEnvRunner.sample`` decides."""
    return FORWARD_EXPLORATION if config.explore else FORWARD_INFERENCE


def _take_calls_per_update(config: Any, envs: int, target: Target) -> None:
    """Set how often an env runner explores between two updates of its weights: one fragment.

    With "auto", RLlib derives the fragment's length from the train batch: the fewer environments,
    the longer. Otherwise it is fixed, also for algorithms with a replay buffer.
    """
    try:
        length = int(config.get_rollout_fragment_length())
        samples = math.ceil(
            config.total_train_batch_size / (config.num_env_runners or 1)
        )
    except Exception:  # an incomplete config
        return
    target.calls_per_update = {FORWARD_EXPLORATION: length}
    words = f"{length}: one rollout fragment"
    plain = AlgorithmConfig.get_rollout_fragment_length
    is_shared_out = type(config).get_rollout_fragment_length is plain
    if config.rollout_fragment_length == "auto" and is_shared_out:
        target.samples_per_update = {FORWARD_EXPLORATION: samples}
        words += f" of {envs} environment{'s' * (envs != 1)}, and of fewer a longer one"
    target.choices["calls per update"] = words


def _take_threads(config: Any, target: Target) -> None:
    """Phases are measured with the threads of the remote actors that run them."""
    actors = {
        "worker": (
            "env runner",
            config.num_env_runners,
            config.num_cpus_per_env_runner,
        ),
        "learner": ("learner", config.num_learners, config.num_cpus_per_learner),
    }
    for role, (name, remote, cpus) in actors.items():
        its_phases = [n for n, phase in PHASES.items() if phase.role == role]
        _take_threads_of(name, remote, cpus, its_phases, target)


def _take_threads_of(
    name: str, remote: int, cpus: Any, phases: list[str], target: Target
) -> None:
    """Ray sets OMP_NUM_THREADS of remote actors to their whole CPUs, at least 1, if not set."""
    if remote and "OMP_NUM_THREADS" not in os.environ:
        # It may also be "auto".
        count = max(1, math.floor(cpus)) if isinstance(cpus, (int, float)) else 1
        target.threads |= dict.fromkeys(phases, count)
        words = f"{count} thread{'s' * (count != 1)} each, which Ray gives remote ones"
        target.choices[f"{name}s"] = words


def _target(kind: str, module: Any, env_to_module: Any = None) -> Target:
    """A target from a built RLModule, with random observations.

    They pass through the connectors of the AlgorithmConfig ``env_to_module``, if there is one.
    """

    def make_inputs(batch_size: int | None) -> dict[str, Any]:
        connectors = env_to_module and observations.connectors_of(env_to_module)
        return observations.made_up_batch(module, batch_size or 1, connectors)

    def make_training_inputs(batch_size: int | None) -> dict[str, Any]:
        return observations.with_transitions(
            module, make_inputs(batch_size), make_inputs(batch_size)
        )

    target = Target(kind, module, make_inputs, library=_CALLS)
    _take_training(target, make_training_inputs, [module])
    space = textwrap.shorten(str(module.observation_space), 80, placeholder=" ...")
    target.choices["inputs"] = f"drawn from {space}"
    return target


def _transitions(module: Any, count: int) -> dict[str, Any]:
    """A batch that a module trains on."""
    batch, later = (observations.made_up_batch(module, count) for _ in range(2))
    return observations.with_transitions(module, batch, later)


def _take_training(
    target: Target, make_inputs: Callable[[int | None], Any], parts: list[Any]
) -> None:
    """Let a target train, with target networks for those of its modules that have some."""
    target.train = lambda model, inputs: model.forward_train(inputs)
    target.phase_inputs = dict.fromkeys((FORWARD_TRAIN, TRAIN_STEP), make_inputs)
    if any(map(_has_target_networks, parts)):
        target.training_model = training_model = copy.deepcopy(target.model)
        for part in cast(Any, training_model).modules():
            if _has_target_networks(part):
                part.make_target_networks()  # as a Learner does


def _has_target_networks(module: Any) -> bool:
    return isinstance(module, TargetNetworkAPI) and not module.inference_only
