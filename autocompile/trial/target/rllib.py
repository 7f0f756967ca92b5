"""RLlib targets: an AlgorithmConfig, RLModuleSpec or RLModule. Written against ray 2.60."""

from __future__ import annotations

import copy
import math
import os
import textwrap
from dataclasses import replace
from typing import Any

import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.rl_module.apis import TargetNetworkAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from autocompile.errors import TargetError
from autocompile.runtime.rllib import observations
from autocompile.settings.phases import (
    FORWARD_EXPLORATION,
    FORWARD_TRAIN,
    LEARNER_UPDATE,
    PHASES,
    TRAIN_STEP,
)
from autocompile.trial.target.learner import Updates, minibatch
from autocompile.trial.target.target import Target


def from_object(value: Any) -> Target:
    """A target from an AlgorithmConfig, an RLModuleSpec or an RLModule."""
    if isinstance(value, torch.nn.Module):
        return _target("RLModule", value)
    if isinstance(value, RLModuleSpec):
        target = _target("RLModuleSpec", value.build())
        target.inference_model = replace(value, inference_only=True).build()
        return target
    if isinstance(value, AlgorithmConfig):
        return _from_config(value)
    raise TargetError(f"RLlib's {type(value).__name__} cannot be tuned")


def _from_config(config: Any) -> Target:
    observations.take_spaces(config)
    module = observations.module_spec(config).build()
    target = _target("AlgorithmConfig", module, config)
    # Env runners build the module without the learner's parts (PPO's value head and encoder). With
    # them, eager exploration would do work that compiling removes, which inflates speed-ups.
    target.inference_model = observations.module_spec(config, inference_only=True).build()
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
    if config.enable_rl_module_and_learner:
        target.make_learner = lambda model: Updates(config, model)
        target.phase_inputs[LEARNER_UPDATE] = lambda count: minibatch(config, module, count or rows)
    return target


def _take_calls_per_update(config: Any, envs: int, target: Target) -> None:
    """Set how often an env runner explores between two updates of its weights: one fragment.

    With "auto", RLlib derives the fragment's length from the train batch: the fewer environments,
    the longer. Otherwise it is fixed, also for algorithms with a replay buffer.
    """
    try:
        length = int(config.get_rollout_fragment_length())
        samples = math.ceil(config.total_train_batch_size / (config.num_env_runners or 1))
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
    """Ray sets OMP_NUM_THREADS of remote actors to their whole CPUs, at least 1, if not set."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    actors = {
        "worker": ("env runner", config.num_env_runners, config.num_cpus_per_env_runner),
        "learner": ("learner", config.num_learners, config.num_cpus_per_learner),
    }
    for role, (name, remote, cpus) in actors.items():
        if remote:
            count = max(1, math.floor(cpus)) if isinstance(cpus, (int, float)) else 1  # or "auto"
            target.threads |= {n: count for n, phase in PHASES.items() if phase.role == role}
            words = f"{count} thread{'s' * (count != 1)} each, which Ray gives remote ones"
            target.choices[f"{name}s"] = words


def _target(kind: str, module: Any, config: Any = None) -> Target:
    """A target from a built RLModule, with random observations, passed through connectors."""

    def make_inputs(batch_size: int | None) -> dict[str, Any]:
        connectors = None if config is None else observations.connectors_of(config)
        return observations.made_up_batch(module, batch_size or 1, connectors)

    def make_training_inputs(batch_size: int | None) -> dict[str, Any]:
        return observations.with_transitions(
            module, make_inputs(batch_size), make_inputs(batch_size)
        )

    target = Target(kind, module, make_inputs, is_rl=True)
    target.phase_inputs = dict.fromkeys((FORWARD_TRAIN, TRAIN_STEP), make_training_inputs)
    if isinstance(module, TargetNetworkAPI) and not module.inference_only:
        target.training_model = training_model = copy.deepcopy(module)
        training_model.make_target_networks()  # as a Learner does
    space = textwrap.shorten(str(module.observation_space), 80, placeholder=" ...")
    target.choices["inputs"] = f"drawn from {space}"
    return target
