"""RLlib's PPO with an LSTM behind its MLP: an env runner calls it with one step and the state.

Its encoder calls dm-tree, at which Dynamo breaks the graph: it compiles in five pieces.
"""

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

# Without it Dynamo breaks the graph at the recurrent layer too.
torch._dynamo.config.allow_rnn = True

config = (
    PPOConfig()
    .environment(
        observation_space=Box(-1.0, 1.0, (24,), np.float32), action_space=Discrete(6)
    )
    .env_runners(num_envs_per_env_runner=16)
    .rl_module(
        model_config=DefaultModelConfig(
            use_lstm=True, lstm_cell_size=128, max_seq_len=16
        )
    )
)


def get_model():
    return config
