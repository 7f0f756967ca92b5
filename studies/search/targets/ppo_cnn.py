"""RLlib's PPO with its convolutional network, on four stacked Atari frames."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.ppo import PPOConfig

config = (
    PPOConfig()
    .environment(
        observation_space=Box(-1.0, 1.0, (84, 84, 4), np.float32),
        action_space=Discrete(4),
    )
    .env_runners(num_envs_per_env_runner=16)
)


def get_model():
    return config
