"""PPO on ALE/Breakout with RLlib's preprocessing and CNN. Needs ``ale-py`` and OpenCV."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

ENVS, FRAGMENT = 16, 16  # environments, and steps of each in an iteration
MINIBATCH = 128  # rows of an update


def make_env(_: Any) -> gymnasium.Env[Any, Any]:
    """Breakout as RLlib's examples see it: 84 x 84, four grey frames, values in [-1, 1]."""
    gymnasium.register_envs(importlib.import_module("ale_py"))
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1)
    return wrap_atari_for_new_api_stack(env, dim=84, framestack=4)


def get_model() -> Any:
    """One env runner and one learner in the process; an iteration is one short fragment."""
    register_env("breakout", make_env)
    gpus = int(torch.cuda.is_available())
    return (
        PPOConfig()
        .environment("breakout")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=ENVS,
            num_gpus_per_env_runner=gpus,
            rollout_fragment_length=FRAGMENT,
        )
        .learners(num_learners=0, num_gpus_per_learner=gpus)
        .training(
            train_batch_size_per_learner=ENVS * FRAGMENT,
            minibatch_size=MINIBATCH,
            num_epochs=1,
        )
    )
