"""The modules of several agents: what an algorithm has of them, and the one that is tuned.

Env runners and learners call each module by itself, so what is best for one is best for those that
are alike: of the same class, spaces and configuration.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from autocompile.errors import TargetError, first_words
from autocompile.rllib.observations import made_environment

_DRAWS = 64  # of the modules of all agents, where they may be drawn by chance
_ONE = "name the RLModuleSpec of one module as the target: its settings can be used for all"


@dataclass(frozen=True)
class Rows:
    """How many rows an env runner gives each module in a step of all its environments.

    Attributes:
        counts: by module, where all agents act; empty where that is not known.
        words: how it is known, or why not.
    """

    counts: dict[str, int]
    words: str

    @classmethod
    def of(cls, mapping: Any, agents: list[Any], envs: int) -> Rows:
        """Ask ``mapping``, a ``policy_mapping_fn``, for the module of each agent.

        It may draw by chance, so it is asked many times, and may need an episode, which is not
        there.
        """
        many = f"{envs} environment{'s' * (envs != 1)}"
        if not agents:
            return cls({}, f"1: the environment names no agents ({many})")
        try:
            drawn = [Counter(mapping(a, None) for a in agents) for _ in range(_DRAWS)]
        except Exception as error:
            why = first_words(error)
            return cls({}, f"1: policy_mapping_fn needs an episode to tell it ({why})")
        total = sum(drawn, Counter())
        counts = {
            str(name): max(1, round(envs * count / _DRAWS))
            for name, count in total.items()
        }
        is_fixed = all(each == drawn[0] for each in drawn)
        mean = "" if is_fixed else " on average, as policy_mapping_fn draws by chance"
        return cls(counts, f"of all agents of {many}{mean}")


def of_config(config: Any) -> tuple[MultiRLModuleSpec, Rows]:
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
    env = made_environment(config)
    try:
        spec = config.get_multi_rl_module_spec(env=env)
        agents = list(getattr(env, "possible_agents", None) or env.agents)
    finally:
        env.close()
    envs = int(config.num_envs_per_env_runner or 1)
    return spec, Rows.of(config.policy_mapping_fn, agents, envs)


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
    if not specs:
        raise TargetError("the MultiRLModuleSpec has no modules", hint=_ONE)
    kinds = {name: _kind_of(one) for name, one in specs.items()}
    others = [
        name for name, kind in kinds.items() if kind != next(iter(kinds.values()))
    ]
    if others:
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
