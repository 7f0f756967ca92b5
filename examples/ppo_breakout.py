"""RLlib's PPO on Breakout-shaped observations; neither Atari nor ale-py is needed.

    autocompile tune examples/ppo_breakout.py

tunes `forward_exploration` (what the env runners call) and the optimizer step, or a whole update
(`--phase learner_update`) where one takes at most 0.15 s, as on a GPU.
"""

import numpy as np
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.ppo import PPOConfig

config = (
    PPOConfig()
    .environment(
        observation_space=Box(
            -1.0, 1.0, (84, 84, 4), np.float32
        ),  # four stacked grey frames
        action_space=Discrete(4),
    )
    .env_runners(num_envs_per_env_runner=16)
)


def get_model():
    return config
