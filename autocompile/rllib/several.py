"""The modules of several agents: what an algorithm has of them, and the one that is tuned.

Env runners and learners call each module by itself, so what is best for one is best for those that
are alike: of the same class, spaces and configuration.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry

from autocompile.errors import TargetError

_ONE = "name the RLModuleSpec of one module as the target: its settings can be used for all"


def of_config(config: Any) -> tuple[MultiRLModuleSpec, dict[str, int]]:
    """The modules of an AlgorithmConfig of several agents, and the rows that a runner gives each.

    Raises:
        TargetError: there is no environment to tell the spaces, or connectors change what the
            modules see.
    """
    if config._env_to_module_connector is not None:
        raise TargetError(
            "what env_to_module connectors make of the observations of several agents is not known",
            hint=_ONE,
        )
    make, given = config.env, config.env_config or {}
    if isinstance(make, str) and _global_registry.contains(ENV_CREATOR, make):
        make = _global_registry.get(ENV_CREATOR, make)
    if make is None or isinstance(make, str):
        raise TargetError(
            "the AlgorithmConfig of several agents names no environment that can be made",
            hint=f".environment(MyMultiAgentEnv) on the config; or {_ONE}",
        )
    env = make(EnvContext(given, worker_index=0))
    try:
        spec = config.get_multi_rl_module_spec(env=env)
        agents = list(getattr(env, "possible_agents", None) or ())
    finally:
        env.close()
    envs = int(config.num_envs_per_env_runner or 1)
    return spec, _rows(config.policy_mapping_fn, agents, envs)


def one_of(spec: MultiRLModuleSpec) -> tuple[str, RLModuleSpec]:
    """The first module by name; a TargetError unless all are alike and called by themselves."""
    specs = dict(sorted(spec.rl_module_specs.items()))
    if spec.multi_rl_module_class is not MultiRLModule:
        raise TargetError(
            f"{', '.join(specs)} are called by their {spec.multi_rl_module_class.__name__}, which "
            "may pass on more than observations, as of an encoder that they share",
            "modules are tuned one by one, with the batch that an environment gives",
            hint=_ONE,
        )
    kinds = {name: _kind_of(one) for name, one in specs.items()}
    others = [
        name for name, kind in kinds.items() if kind != next(iter(kinds.values()))
    ]
    if others or not specs:
        raise TargetError(
            f"the modules {', '.join(specs)} are not alike, so that each has a best setting of its "
            "own",
            hint=_ONE,
        )
    return next(iter(specs.items()))


def one_in_words(name: str, spec: MultiRLModuleSpec) -> str:
    """Which of several modules is tuned."""
    count = len(spec.rl_module_specs)
    return f"{name}, one of {count} that are alike" if count > 1 else name


def _kind_of(spec: RLModuleSpec) -> tuple[str, ...]:
    """What modules that are alike share; one without a class has that of its algorithm."""
    made_by = (spec.module_class, spec.catalog_class)
    names = (getattr(each, "__qualname__", "") for each in made_by)
    parts = (spec.observation_space, spec.action_space, spec.model_config)
    return (*names, *map(str, parts))


def _rows(mapping: Any, agents: list[Any], envs: int) -> dict[str, int]:
    """By module, the rows that a runner of so many environments gives it where all agents act."""
    try:
        counts = Counter(mapping(agent, None) for agent in agents)
    except Exception:  # it depends on the episode
        return {}
    return {str(name): count * envs for name, count in counts.items()}
