"""The modules of several agents: what an algorithm has of them, and those that are tuned.

Env runners and learners call each module by itself, so what is right and fast for one is so for
those that are alike: of the same class, spaces and configuration. One of each kind is tuned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from autocompile.errors import TargetError, first_words
from autocompile.rllib.observations import made_environment

_DRAWS = 1000  # of the modules of all agents, where they may be drawn by chance
_EACH = "one for each environment"
_ONE = "name the RLModuleSpec of one module as the target: its settings can be used for all"


@dataclass(frozen=True)
class Rows:
    """How many rows an env runner gives each module in a step of all its environments.

    Attributes:
        counts: by module, where all agents act; empty where that is not known.
        words: how it is known, or why not.
        envs: how many environments a runner has.
    """

    counts: dict[str, int]
    words: str
    envs: int = 1

    @classmethod
    def of(cls, mapping: Any, agents: list[Any], envs: int) -> Rows:
        """Ask ``mapping``, a ``policy_mapping_fn``, for the module of each agent.

        It may draw by chance, so it is asked many times, and may need an episode, which is not
        there.
        """
        many = f"{envs} environment{'s' * (envs != 1)}"
        if not agents:
            return cls({}, f"{_EACH}: the environment names no agents", envs)
        try:
            drawn = [Counter(mapping(a, None) for a in agents) for _ in range(_DRAWS)]
        except Exception as error:
            why = first_words(error)
            why = f"policy_mapping_fn needs an episode to tell more ({why})"
            return cls({}, f"{_EACH}: {why}", envs)
        total = sum(drawn, Counter())
        counts = {
            str(name): max(1, round(envs * count / _DRAWS))
            for name, count in total.items()
        }
        is_fixed = all(each == drawn[0] for each in drawn)
        mean = "" if is_fixed else " on average, as policy_mapping_fn draws by chance"
        return cls(counts, f"of all agents of {many}{mean}", envs)

    def given(self, name: str, envs: int) -> int:
        """How many rows a runner of so many environments gives a module."""
        return max(1, round(self.counts.get(name, self.envs) * envs / self.envs))

    def has(self, name: str) -> bool:
        """Whether a runner calls a module, as far as that is known."""
        return not self.counts or name in self.counts


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


def one_of_each(
    spec: MultiRLModuleSpec, trained: Container[str], rows: Rows
) -> dict[str, RLModuleSpec]:
    """One module of each kind that a runner calls, if possible one that is trained: others are alike.

    Raises:
        TargetError: there is none, or they are not called by themselves.
    """
    if spec.multi_rl_module_class is not MultiRLModule:
        raise TargetError(
            f"{', '.join(spec.rl_module_specs)} are called by their "
            f"{spec.multi_rl_module_class.__name__}, which may pass on more than observations, as "
            "of an encoder that they share",
            "modules are called one by one, with the batch that an environment gives",
            hint=_ONE,
        )
    names = [name for name in spec.rl_module_specs if rows.has(name)]
    if not names:
        raise TargetError(
            "the MultiRLModuleSpec has no modules that an agent is mapped to", hint=_ONE
        )
    first: dict[tuple[Any, ...], str] = {}
    for name in sorted(names, key=lambda name: (name not in trained, name)):
        first.setdefault(_kind_of(spec.rl_module_specs[name]), name)
    return {name: spec.rl_module_specs[name] for name in first.values()}


def which_are_tuned(
    kinds: Mapping[str, RLModuleSpec], spec: MultiRLModuleSpec, rows: Rows
) -> str:
    """Which of several modules are tuned, and which no agent is mapped to."""
    every = Counter(map(_kind_of, spec.rl_module_specs.values()))
    counts = {name: every[_kind_of(one)] for name, one in kinds.items()}
    words = [
        f"{name}, one of {count} that are alike" if count > 1 else name
        for name, count in counts.items()
    ]
    known = {_kind_of(one) for one in kinds.values()}
    others = [
        n for n, one in spec.rl_module_specs.items() if _kind_of(one) not in known
    ]
    if others:
        words.append(f"not {', '.join(others)}, to which no agent is mapped")
    return ", ".join(words)


def trained_of(config: Any, names: Iterable[str]) -> set[str]:
    """Which modules a learner updates, by ``policies_to_train``."""
    asked = config.policies_to_train
    if asked is None:
        return {*names}
    if not callable(asked):
        return {name for name in names if name in asked}
    try:
        return {name for name in names if asked(name, None)}
    except Exception:  # it depends on the batch
        return {*names}


class SeveralModules(torch.nn.Module):
    """Modules of several kinds, called one after the other as a ``MultiRLModule`` calls them.

    Attributes:
        parts: by name; also those that are not trained.
        trained: the names of those that ``forward_train`` calls.
    """

    def __init__(self, parts: Mapping[str, Any], trained: Iterable[str]) -> None:
        super().__init__()
        self.names, self.trained = tuple(parts), frozenset(trained)
        self._parts = torch.nn.ModuleList(parts.values())

    @property
    def parts(self) -> dict[str, Any]:
        return dict(zip(self.names, self._parts, strict=True))

    def autocompile_parts(self) -> list[torch.nn.Module]:
        """Each uses a setting by itself."""
        return [*self._parts]

    def _forward_exploration(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {
            name: part.forward_exploration(dict(batch[name]), **kwargs)
            for name, part in self.parts.items()
        }

    def _forward_inference(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {
            name: part.forward_inference(dict(batch[name]), **kwargs)
            for name, part in self.parts.items()
        }

    def _forward_train(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {
            name: part.forward_train(dict(batch[name]), **kwargs)
            for name, part in self.parts.items()
            if name in self.trained
        }

    forward_exploration = _forward_exploration
    forward_inference = _forward_inference
    forward_train = _forward_train


def _kind_of(spec: RLModuleSpec) -> tuple[Any, ...]:
    """What modules that are alike share; one without a class has that of its algorithm."""
    parts = (spec.observation_space, spec.action_space, spec.model_config)
    return (spec.module_class, spec.catalog_class, *map(repr, parts))
