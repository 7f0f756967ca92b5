"""DQN on CartPole with a small network: exploration is told the number of steps."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.dqn import DQNConfig


def get_model() -> Any:
    """One update of 128 rows for every 16 steps of the environments."""
    return (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
        .training(
            train_batch_size_per_learner=128,
            num_steps_sampled_before_learning_starts=500,
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .reporting(min_sample_timesteps_per_iteration=1000, min_time_s_per_iteration=0)
    )
