"""What a module sees is what the configuration's own env_to_module connectors make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ray.rllib")

import gymnasium as gym
from gymnasium import spaces
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import (
    FlattenObservations,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
from ray.tune.registry import register_env

from autocompile.errors import TargetError
from autocompile.rllib.modules import from_object
from autocompile.rllib.observations import module_spec
from autocompile.trial.model.sides import make_side
from autocompile.trial.model.target import Target, seed_everything

PAIR = (spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-np.inf, np.inf, ()))
NESTED = spaces.Dict({"place": spaces.Discrete(3), "pair": spaces.Tuple(PAIR)})
BOX = spaces.Box(-1.0, 1.0, (4,), np.float32)
IMAGES = spaces.Box(-1.0, 1.0, (4, 4, 1), np.float32)
pytestmark = pytest.mark.filterwarnings("ignore")


def stacking() -> Any:
    return FrameStackingEnvToModule(num_frames=3)


def ppo(space: Any, *connectors: Any) -> Any:
    config = PPOConfig().environment(
        observation_space=space, action_space=spaces.Discrete(2)
    )
    config.env_runners(
        num_envs_per_env_runner=3,
        env_to_module_connector=lambda env, spaces, device: [c() for c in connectors],
    )
    config.training(minibatch_size=16)
    if (
        stacking in connectors
    ):  # frames reach the learner through a connector of its own
        config.training(learner_connector=lambda *_: FrameStackingLearner(num_frames=3))
    return config.rl_module(
        model_config={"fcnet_hiddens": [8], "conv_filters": [[4, 2, 1]]}
    )


def loaded(config: Any) -> Target:
    seed_everything(0)
    return from_object(config)


@pytest.mark.parametrize(
    ("space", "connectors", "seen"),
    [
        (NESTED, [FlattenObservations], (6,)),
        (BOX, [MeanStdFilter], (4,)),
        (
            BOX,
            [PrevActionsPrevRewards, FlattenObservations],
            (7,),
        ),  # and two actions, a reward
        (spaces.Discrete(5), [FlattenObservations], (5,)),
        (IMAGES, [stacking], (4, 4, 3)),
    ],
    ids=["flattened", "normalized", "previous", "one_hot", "stacked"],
)
def test_a_module_is_built_and_fed_for_what_the_connectors_make(
    space: Any, connectors: Any, seen: tuple[int, ...]
) -> None:
    target = loaded(ppo(space, *connectors))
    if connectors != [stacking]:
        assert target.model.observation_space.shape == seen
    for phase in ("forward_exploration", "forward_train", "learner_update"):
        seed_everything(0)
        inputs = target.inputs(phase, 16)
        columns = inputs.get("default_policy", inputs)
        assert (
            columns["obs"].shape == (16, *seen)
            and columns["obs"].dtype is torch.float32
        )
        make_side(target, phase, inputs).run()


def test_connectors_that_need_the_real_environment_are_named_with_the_way_out() -> None:
    config = ppo(BOX)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: env.secret)
    with pytest.raises(
        TargetError, match=r"connectors cannot be built .*secret"
    ) as caught:
        loaded(config)
    assert caught.value.hint and "RLModuleSpec" in caught.value.hint


class Nested(gym.Env):  # type: ignore[type-arg]
    """An environment with nested observations, which has to be made with its size."""

    observation_space, action_space = NESTED, spaces.Discrete(2)

    def __init__(self, config: Any) -> None:
        self.size = config["size"]


def test_the_spaces_of_an_environment_registered_with_ray_are_found() -> None:
    register_env("nested", Nested)
    config = DQNConfig().environment("nested", env_config={"size": 2})
    config.env_runners(env_to_module_connector=lambda *_: FlattenObservations())
    assert module_spec(config, inference_only=True).observation_space.shape == (6,)
