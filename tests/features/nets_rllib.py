"""PPO on an environment without a game, whose module is made of the blocks of ``nets``."""

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from nets import WIDTH
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

ROWS = 4
SEEN, ACTIONS = Box(-1.0, 1.0, (WIDTH,), np.float32), Discrete(3)


class Environment(gymnasium.Env):
    observation_space, action_space = SEEN, ACTIONS

    def __init__(self, config=None):
        self._random = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 1.0, False, False, {}

    def _seen(self):
        return self._random.uniform(-1, 1, WIDTH).astype(np.float32)


class Module(TorchRLModule, ValueFunctionAPI):
    def setup(self):
        self.body = self.model_config["body"]()
        self.policy, self.value = torch.nn.Linear(WIDTH, 3), torch.nn.Linear(WIDTH, 1)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.policy(self.body(batch[Columns.OBS]))}

    def _forward_train(self, batch, **kwargs):
        features = self.body(batch[Columns.OBS])
        return {
            Columns.ACTION_DIST_INPUTS: self.policy(features),
            Columns.EMBEDDINGS: features,
        }

    def compute_values(self, batch, embeddings=None):
        if embeddings is None:
            embeddings = self.body(batch[Columns.OBS])
        return self.value(embeddings).squeeze(-1)


def ppo(body):
    return (
        PPOConfig()
        .environment(Environment)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=ROWS)
        .training(train_batch_size_per_learner=8, minibatch_size=ROWS, num_epochs=1)
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=Module, model_config={"body": body}
            )
        )
        .debugging(seed=0)
    )
