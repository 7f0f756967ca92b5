"""Generates batches of observations for RLModules."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.from_config import from_config
from ray.tune.registry import ENV_CREATOR, _global_registry
from torch.utils import _pytree as pytree

from autocompile.errors import TargetError

_OWN_SPEC = "name an RLModuleSpec with the spaces that the module sees as the target"
_OWN_INPUTS = (
    "define get_inputs(batch_size) in the target file: it returns the batch dict"
)


def made_up_batch(module: Any, count: int, connectors: Any = None) -> dict[str, Any]:
    """A batch for an RLModule, with one time step per environment if the module is stateful.

    Observations of the module, or of the environment for the ``env_to_module`` pipeline if there
    is one, are drawn for ``count`` environments with numpy's global generator.
    """
    if connectors is not None:
        return _connected(connectors, module, count)
    batch = {"obs": _rows(module, module.observation_space, count)}
    if module.is_stateful():
        batch["state_in"] = pytree.tree_map(
            lambda value: torch.as_tensor(value).repeat(count, *[1] * len(value.shape)),
            module.get_initial_state(),
        )
    return batch


def with_transitions(
    module: Any, batch: dict[str, Any], later: dict[str, Any]
) -> dict[str, Any]:
    """A batch with actions, and a later batch as next observations: some modules train on them."""
    rows = pytree.tree_leaves(batch["obs"])[0].shape[0]
    actions = _rows(module, module.action_space, rows)
    with_actions = {
        **batch,
        Columns.ACTIONS: actions,
        Columns.NEXT_OBS: later[Columns.OBS],
    }
    if Columns.STATE_IN in later:
        with_actions[Columns.NEXT_STATE_IN] = later[Columns.STATE_IN]
    return with_actions


def connectors_of(config: Any) -> Any:
    """The ``env_to_module`` pipeline of an AlgorithmConfig; None if it adds no connectors."""
    if config._env_to_module_connector is None:
        return None
    given = {
        "observation_space": config.observation_space,
        "action_space": config.action_space,
    }
    env = SyncVectorEnv([lambda: MadeUpEnv(given)])
    every = {
        INPUT_ENV_SPACES: (env.observation_space, env.action_space),
        INPUT_ENV_SINGLE_SPACES: (
            env.single_observation_space,
            env.single_action_space,
        ),
    }
    with _errors(
        "the env_to_module connectors cannot be built for a generated environment",
        _OWN_SPEC,
    ):
        return config.build_env_to_module_connector(env=env, spaces=every)


def module_spec(config: Any, **how: Any) -> Any:
    """The RLModuleSpec of a single-agent AlgorithmConfig, with the spaces after its connectors."""
    take_spaces(config)
    connectors = connectors_of(config)
    if connectors is None:
        return config.get_rl_module_spec(**how)
    spaces = {DEFAULT_MODULE_ID: (connectors.observation_space, config.action_space)}
    return config.get_rl_module_spec(spaces=spaces, **how)


def take_spaces(config: Any) -> None:
    """Set missing spaces of an AlgorithmConfig from its environment."""
    if config.observation_space is not None and config.action_space is not None:
        return
    if config.env is None:
        raise TargetError(
            "the AlgorithmConfig names neither an environment nor its spaces",
            hint=".environment(observation_space=..., action_space=...) on the config",
        )
    env = made_environment(config)
    config.environment(
        observation_space=config.observation_space or env.observation_space,
        action_space=config.action_space or env.action_space,
    )
    env.close()


def made_environment(config: Any) -> Any:
    """The environment that an AlgorithmConfig names, as ``Algorithm`` finds and makes it.

    Raises:
        TargetError: it names none, or one that cannot be made here.
    """
    given, make = config.env_config or {}, config.env
    context = EnvContext(given, worker_index=0)
    if make is None:
        raise TargetError(
            "the AlgorithmConfig names no environment",
            hint=".environment(MyEnv) on the config",
        )
    with _errors(f"the environment {make} cannot be made", ".environment(MyEnv)"):
        if not isinstance(make, str):
            return make(context)
        if _global_registry.contains(ENV_CREATOR, make):
            return _global_registry.get(ENV_CREATOR, make)(context)
        if "." in make and "/" not in make:  # a class by its path
            return from_config(make, context)
        return gymnasium.make(make, **given)


class MadeUpEnv(gymnasium.Env):  # type: ignore[misc]
    """An environment of random observations and rewards, from numpy's global generator.

    Its episodes are terminated or truncated at random after ``config["length"]`` steps.
    """

    def __init__(self, config: Any) -> None:
        self.observation_space = config["observation_space"]
        self.action_space = config["action_space"]
        self._length, self._steps = config.get("length"), 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return _drawn(self.observation_space, _generator()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        generator = _generator()
        ends, terminates = self._steps == self._length, bool(generator.random() < 0.5)
        reward = float(generator.normal())
        observation = _drawn(self.observation_space, generator)
        return observation, reward, ends and terminates, ends and not terminates, {}


def _connected(connectors: Any, module: Any, count: int) -> dict[str, Any]:
    space, generator = connectors.input_observation_space, _generator()
    episodes = []
    for _ in range(count):
        episode = SingleAgentEpisode(
            observation_space=space, action_space=connectors.input_action_space
        )
        episode.add_env_reset(observation=_drawn(space, generator))
        episodes.append(episode)
    with _errors(
        "the env_to_module connectors fail on generated observations", _OWN_INPUTS
    ):
        batch = connectors(
            rl_module=module, batch={}, episodes=episodes, explore=True, shared_data={}
        )
    return dict(batch)


@contextlib.contextmanager
def _errors(what: str, hint: str) -> Iterator[None]:
    """Raise errors as TargetErrors: connectors may need data that cannot be generated."""
    try:
        yield
    except Exception as error:
        raise TargetError(
            f"{what}: {type(error).__name__}: {error}", hint=hint
        ) from error


def _rows(module: Any, space: Any, count: int) -> Any:
    """Random values of a space as RLlib's default connectors give them to a module: stacked."""
    generator = _generator()

    def stacked(*values: Any) -> torch.Tensor:
        rows = torch.as_tensor(np.stack(values))
        rows = rows.float() if rows.dtype == torch.float64 else rows
        return rows[:, None] if module.is_stateful() else rows

    with _errors(
        f"values of a {type(space).__name__} space cannot be generated", _OWN_INPUTS
    ):
        return pytree.tree_map(
            stacked, *[_drawn(space, generator) for _ in range(count)]
        )


def _generator() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


def _drawn(space: Any, generator: np.random.Generator) -> Any:
    """One observation as an environment returns it."""
    if isinstance(space, spaces.Dict):
        return {name: _drawn(part, generator) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_drawn(part, generator) for part in space.spaces)
    if isinstance(space, spaces.Box):
        return _box(space, generator)
    copied = copy.deepcopy(space)  # seeding must not change the user's
    copied.seed(int(generator.integers(2**31)))
    return copied.sample()


def _box(space: Any, generator: np.random.Generator) -> Any:
    """Values in the bounds; an open side is 2 from the other bound, both are -1 and 1."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    # Some spaces use the largest number of their dtype for "unbounded", and the range overflows.
    open_low, open_high = low < -1e30, high > 1e30
    bottom = np.where(open_low, np.where(open_high, -1.0, high - 2.0), low)
    top = np.where(open_high, np.where(open_low, 1.0, low + 2.0), high)
    return generator.uniform(bottom, top, size=space.shape).astype(space.dtype)
