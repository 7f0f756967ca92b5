"""PPO on CartPole with a small network: where compiling should not be worth it, and training."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig


def get_model() -> Any:
    """Learns to balance for more than 150 steps within 40 iterations, some seconds in all."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
        .training(
            train_batch_size_per_learner=1024,
            minibatch_size=128,
            num_epochs=6,
            lr=0.001,
            vf_loss_coeff=0.01,
        )
        .rl_module(model_config={"fcnet_hiddens": [32], "fcnet_activation": "tanh"})
    )
