"""RLlib targets: an AlgorithmConfig, RLModuleSpec or RLModule, and the updates of a Learner.

A Learner runs in this process, without ray or threads. Written against ray 2.50 and 2.60, new API
stack.
"""

from __future__ import annotations

import copy
import math
import os
import textwrap
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch import torch_learner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.apis import TargetNetworkAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.from_config import from_config
from ray.rllib.utils.replay_buffers.replay_buffer import ReplayBuffer

from autocompile.errors import TargetError
from autocompile.rllib import observations
from autocompile.settings.phases import (
    FORWARD_EXPLORATION,
    FORWARD_INFERENCE,
    FORWARD_TRAIN,
    LEARNER_UPDATE,
    PHASES,
    TRAIN_STEP,
)
from autocompile.trial.model.calls import Calls
from autocompile.trial.model.target import Target

_OF_A_BUFFER = 50  # steps of an episode from which single ones are drawn
_SIZES = 4  # of whole train batches in a pass: enough to tell one program from one for each size


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
        target.make_learner = lambda model: Updates(config, model)
        if config.minibatch_size or getattr(config, "replay_buffer_config", None):
            target.phase_inputs[LEARNER_UPDATE] = lambda c: minibatch(
                config, module, c or rows
            )
        else:
            _take_whole_batches(config, module, rows, target)
    return target


def _take_whole_batches(config: Any, module: Any, rows: int, target: Target) -> None:
    """Make a pass of updates of several sizes, for an algorithm that learns whole train batches.

    Connectors add a row to each episode, so PPO without minibatches, IMPALA and APPO have another
    number of rows in almost every update (200 steps of CartPole: 204 to 216). With minibatches all
    have their size, since ``MiniBatchCyclicIterator`` begins anew where the batch ends: there is no
    smaller last one. Nor is there in a sample of a replay buffer.
    """
    target.own_batch_size[LEARNER_UPDATE] = (
        rows * _SIZES
    )  # as of each workload, of a pass

    def make_calls(count: int | None) -> Calls:
        steps = max(2, (count or rows * _SIZES) // _SIZES)
        return Calls(minibatch(config, module, steps, n) for n in range(1, _SIZES + 1))

    target.phase_inputs[LEARNER_UPDATE] = make_calls
    target.choices["updates"] = (
        "whole train batches, whose rows differ with the episodes in them"
    )


def _take_evaluation(config: Any, envs: int, target: Target) -> None:
    """What evaluation runners do in a phase that is not that of sampling is measured as there.

    They have a module of their own, which :func:`autocompile.rllib.tuned` compiles for itself, also
    in the process that samples. So each program has one batch size, its runner's environments.
    """
    if not (config.evaluation_interval or config.evaluation_num_env_runners):
        return  # ``Algorithm.evaluate`` then samples with the runner of training
    evaluation = config.get_evaluation_config_object()
    phase, sampling = _phase_of(evaluation), _phase_of(config)
    its_envs = int(evaluation.num_envs_per_env_runner or 1)
    if phase != sampling:
        target.own_batch_size[phase] = its_envs
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
            f"--batch-size {envs},{its_envs} tunes both"
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
        count = (
            max(1, math.floor(cpus)) if isinstance(cpus, (int, float)) else 1
        )  # or "auto"
        target.threads |= dict.fromkeys(phases, count)
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
    target.phase_inputs = dict.fromkeys(
        (FORWARD_TRAIN, TRAIN_STEP), make_training_inputs
    )
    if isinstance(module, TargetNetworkAPI) and not module.inference_only:
        target.training_model = training_model = copy.deepcopy(module)
        training_model.make_target_networks()  # as a Learner does
    space = textwrap.shorten(str(module.observation_space), 80, placeholder=" ...")
    target.choices["inputs"] = f"drawn from {space}"
    return target


class Updates:
    """Gradient updates of a full RLModule, which they change, by the Learner of its config."""

    def __init__(self, config: Any, module: Any) -> None:
        local = _in_this_process(config)
        agents = MultiRLModule()
        agents.add_module(DEFAULT_MODULE_ID, module)
        device = next(module.parameters()).device
        with (
            # RLlib would ask ray for a GPU.
            mock.patch.object(torch_learner, "get_device", return_value=device),
            # IMPALA and APPO start an update thread that never ends.
            mock.patch.object(threading.Thread, "start"),
        ):
            self.learner = local.learner_class(config=local, module=agents)
            self.learner.build()
        self.optimizers = list(self.learner._named_optimizers.values())
        names = {id(p): name for name, p in module.named_parameters()}
        trained = self.learner._params.values()
        self.parameters = {
            names.get(id(p), f"learner.{i}"): p for i, p in enumerate(trained)
        }
        self._batches: dict[
            int, tuple[Any, dict[str, SampleBatch]]
        ] = {}  # and what each is of

    def update(self, batch: Mapping[str, Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Losses, gradients and optimizer steps on a :func:`minibatch`; the loss by module."""
        if id(batch) not in self._batches:
            made = {name: SampleBatch(dict(columns)) for name, columns in batch.items()}
            while len(self._batches) >= _SIZES:  # of an earlier pass
                del self._batches[next(iter(self._batches))]
            self._batches[id(batch)] = batch, made  # kept, so that no other has its id
        _, of_rllib = self._batches[id(batch)]
        for columns in of_rllib.values():
            columns.accessed_keys = (
                set()
            )  # as in a new minibatch: Dynamo guards on them
        _, losses, _ = self.learner._update(of_rllib)
        return {name: loss.detach() for name, loss in losses.items()}


def minibatch(
    config: Any, module: Any, count: int, parts: int = 1
) -> dict[str, dict[str, Any]]:
    """A minibatch of episodes with random observations and rewards: columns by module.

    An env runner samples the episodes with the module's weights. They pass through the algorithm's
    replay buffer, if any, and the learner's connectors. ``count`` are rows; for an algorithm
    without minibatches, environment steps. ``parts`` says how many episodes are in a fragment.
    """
    updates = Updates(config, copy.deepcopy(module))
    episodes = _episodes(config, module, count, parts)
    if getattr(config, "replay_buffer_config", None):
        episodes = _replayed(config, module, episodes, count)
    batches = updates.learner._create_iterator_if_necessary(
        training_data=TrainingData(episodes=episodes),
        minibatch_size=count if config.minibatch_size else None,
    )
    by_module = next(iter(batches)).policy_batches
    return {name: dict(columns) for name, columns in by_module.items()}


def _episodes(config: Any, module: Any, count: int, parts: int = 1) -> list[Any]:
    """Whole episodes with at least ``count`` steps in all, of a rollout fragment or parts of it."""
    length = _OF_A_BUFFER
    if not getattr(config, "replay_buffer_config", None):
        length = min(
            int(config.get_rollout_fragment_length()), max(2, math.ceil(count / 2))
        )
    local = _in_this_process(config)
    local.callbacks_class = RLlibCallback
    for name in [name for name in vars(local) if name.startswith("callbacks_on_")]:
        setattr(local, name, None)
    spaces = {
        "observation_space": config.observation_space,
        "action_space": config.action_space,
    }
    of_each = math.ceil(length / parts)
    local.environment(
        env=observations.MadeUpEnv, env_config={**spaces, "length": of_each}
    )
    environments = math.ceil(count / length)
    local.env_runners(num_env_runners=0, num_envs_per_env_runner=environments)
    local.gym_env_vectorize_mode = "sync"
    runner = SingleAgentEnvRunner(config=local)
    runner.module.load_state_dict(module.state_dict(), strict=False)
    episodes: list[Any] = runner.sample(num_timesteps=environments * length)
    runner.stop()
    return episodes


def _replayed(config: Any, module: Any, episodes: list[Any], count: int) -> list[Any]:
    """A sample of the episodes from the algorithm's replay buffer, as in ``DQN.training_step``."""
    buffer = from_config(ReplayBuffer, dict(config.replay_buffer_config))
    buffer.rng = np.random.default_rng(np.random.randint(2**31))
    buffer.add(episodes)
    sample: list[Any] = buffer.sample(
        num_items=count,
        n_step=config.n_step,
        batch_length_T=module.is_stateful() * config.model_config.get("max_seq_len", 0),
        lookback=int(module.is_stateful()),
        min_batch_length_T=getattr(config, "burn_in_len", 0),
        gamma=config.gamma,
        beta=config.replay_buffer_config.get("beta"),
        sample_episodes=True,
    )
    return sample


def _in_this_process(config: Any) -> Any:
    """A copy of the configuration without remote workers and ray's own compiling."""
    local = config.copy(copy_frozen=False)
    local.rollout_fragment_length = config.get_rollout_fragment_length()
    local.num_learners = local.num_gpus_per_learner = local.num_gpus_per_env_runner = 0
    local.num_aggregator_actors_per_learner = 0
    local.torch_compile_learner = False
    local.seed = None  # or all batches are equal
    return local
