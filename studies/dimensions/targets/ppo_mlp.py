"""RLlib's PPO on eight numbers: its default MLP of two layers of 256."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.ppo import PPOConfig

config = PPOConfig().environment(
    observation_space=Box(-1.0, 1.0, (8,), np.float32), action_space=Discrete(4)
)


def get_model():
    return config
