"""RLlib's three kinds of target, small: a config, a spec and a module of the user's own."""

import gymnasium.spaces as spaces
import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

BOX, ACTIONS = spaces.Box(-1.0, 1.0, (8,), np.float32), spaces.Discrete(3)


def ppo(observations=BOX, **model_config):
    config = PPOConfig().environment(
        observation_space=observations, action_space=ACTIONS
    )
    config = config.env_runners(num_envs_per_env_runner=6)
    small = DefaultModelConfig(fcnet_hiddens=[16], **model_config)
    return config.rl_module(model_config=small)


config = ppo().training(lr=3e-3, minibatch_size=24)
with_lstm = ppo(use_lstm=True, lstm_cell_size=8, max_seq_len=4)
whole_batches = ppo().training(
    minibatch_size=None, train_batch_size_per_learner=96, lr=3e-3
)
with_gymnasium = PPOConfig().environment("CartPole-v1")
sac = (
    SACConfig()
    .environment(
        observation_space=BOX, action_space=spaces.Box(-1.0, 1.0, (2,), np.float32)
    )
    .rl_module(model_config={"fcnet_hiddens": [16], "head_fcnet_hiddens": [16]})
)
without_spaces = PPOConfig()
spec = config.get_rl_module_spec()


class Flat(TorchRLModule):
    """Flattens whatever an observation holds: RLlib's own encoders take plain boxes only."""

    def setup(self):
        sample = self.observation_space.sample()
        width = sum(
            x.shape[-1] for x in self._leaves(_as_batch(self.observation_space, sample))
        )
        self.policy = torch.nn.Linear(width, 3)
        self.value = torch.nn.Linear(width, 1)

    @staticmethod
    def _leaves(obs):
        if isinstance(obs, dict):
            return [leaf for key in sorted(obs) for leaf in Flat._leaves(obs[key])]
        if isinstance(obs, tuple):
            return [leaf for part in obs for leaf in Flat._leaves(part)]
        return [obs.reshape(len(obs), -1).float()]

    def _forward(self, batch, **kwargs):
        flat = torch.cat(self._leaves(batch[Columns.OBS]), -1)
        return {
            Columns.ACTION_DIST_INPUTS: self.policy(flat),
            "value": self.value(flat),
        }


def _as_batch(space, sample):
    if isinstance(space, spaces.Dict):
        return {k: _as_batch(s, sample[k]) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_batch(s, x) for s, x in zip(space.spaces, sample, strict=True))
    if isinstance(space, spaces.Discrete):
        return torch.zeros(1, 1)
    return torch.as_tensor(sample)[None]


NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 4), np.uint8),
        "pair": spaces.Tuple((spaces.Discrete(5, start=2), spaces.MultiBinary(3))),
        "double": spaces.Box(-1.0, 1.0, (2,), np.float64),
        "anywhere": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    }
)


def get_model():
    return Flat(observation_space=NESTED, action_space=ACTIONS)
