"""RLlib's PPO with its MLP, on the 17 numbers that a robot such as HalfCheetah observes."""

import numpy as np
from gymnasium.spaces import Box
from ray.rllib.algorithms.ppo import PPOConfig

config = (
    PPOConfig()
    .environment(
        observation_space=Box(-1.0, 1.0, (17,), np.float32),
        action_space=Box(-1.0, 1.0, (6,), np.float32),
    )
    .env_runners(num_envs_per_env_runner=16)
)


def get_model():
    return config
