"""The updates of RLlib's Learner, in this process, without ray or threads."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch import torch_learner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.from_config import from_config
from ray.rllib.utils.replay_buffers.replay_buffer import ReplayBuffer

from autocompile.rllib import observations

SIZES = 4  # of whole train batches in a pass: enough to tell one program from one for each size
_OF_A_BUFFER = 50  # steps of an episode from which single ones are drawn


class LearnerUpdates:
    """Gradient updates of a full RLModule, which they change, by the Learner of its config.

    ``count`` learners average gradients, each on a minibatch of its own, in a process group that is
    there: RLlib then wraps the module in DistributedDataParallel.
    """

    def __init__(self, config: Any, module: Any, count: int = 1) -> None:
        local = _in_this_process(config)
        local.num_learners = count if count > 1 else 0
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
        self.parameters: Mapping[str, torch.Tensor] = {
            names.get(id(p), f"learner.{i}"): p for i, p in enumerate(trained)
        }
        # Batches, and what each is of.
        self._batches: dict[int, tuple[Any, dict[str, SampleBatch]]] = {}

    def forget(self) -> None:
        """Drop the metrics, which RLlib collects until a result is made."""
        self.learner.metrics.reset()

    def update(self, batch: Mapping[str, Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Losses, gradients and optimizer steps on a :func:`minibatch`; the loss by module."""
        if id(batch) not in self._batches:
            made = {name: SampleBatch(dict(columns)) for name, columns in batch.items()}
            while len(self._batches) >= SIZES:  # of an earlier pass
                del self._batches[next(iter(self._batches))]
            self._batches[id(batch)] = batch, made  # kept, so that no other has its id
        _, of_rllib = self._batches[id(batch)]
        for columns in of_rllib.values():
            # As in a new minibatch: Dynamo guards on them.
            columns.accessed_keys = set()
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
    updates = LearnerUpdates(config, copy.deepcopy(module))
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
