"""The order in which settings are tried, as an Optuna sampler over a finite list.

Optuna's own samplers propose failures and repeats again in spaces this small, so the list of what
is left decides, and a simple model of what is known orders it: main effects of each dimension on
the log speed-up, shrunk towards zero, times the chance to work, over the predicted cost.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from autocompile.record import Outcome, Record
from autocompile.search.space import Setting, Space

__all__ = ["SettingSampler", "next_setting", "plainer_twins"]

_PRIOR_WEIGHT = 1.0  # how many observations of "no difference" each value starts with
_CURIOSITY = 0.1  # log speed-up that an untried value may hide
_FIRST_COST_S = 15.0


def _values(setting: Setting) -> dict[str, Any]:
    values = setting.params()
    # A mode's effect is its backend's own, and batch sizes differ in what a mode brings.
    values["mode"] = (setting.config.backend, setting.config.mode)
    return values


def _score(setting: Setting, records: Sequence[Record]) -> float:
    """Expected gain times the chance to work, over the predicted seconds."""
    gain, works, costs = 0.0, 1.0, []
    for name, value in _values(setting).items():
        alike = [r for r in records if _values(Setting(r.config, r.batch_size))[name] == value]
        logs = [math.log(r.measurement.speedup.value) for r in alike if r.ok and r.measurement]
        gain += sum(logs) / (len(logs) + _PRIOR_WEIGHT) + _CURIOSITY / math.sqrt(1 + len(logs))
        if alike:
            fine = sum(r.outcome is Outcome.OK for r in alike)
            works *= (fine + _PRIOR_WEIGHT) / (len(alike) + _PRIOR_WEIGHT)
        if name == "mode":
            costs = [r.wall_s for r in alike if r.wall_s]
    cost = sum(costs) / len(costs) if costs else _FIRST_COST_S
    return math.exp(gain) * works / cost


def next_setting(space: Space, left: Sequence[Setting], records: Sequence[Record]) -> Setting:
    """The setting to try next; ``left`` must not be empty."""
    for setting in (*space.baselines(), *space.unusable):
        if setting in left:
            return setting
    waiting = set(left)
    # A twin that the first one's result may answer for free is not tried before it.
    free = [s for s in left if not any(twin in waiting for twin in plainer_twins(s))]
    return max(free or left, key=lambda s: _score(s, records))


def plainer_twins(setting: Setting) -> list[Setting]:
    """Settings whose result answers this one if nothing broke the graph and nothing recompiled.

    Under ``fullgraph`` that compiles there is one graph, as without it; ``dynamic=False`` differs
    from ``None`` only after a recompile.
    """
    twins = []
    if setting.config.fullgraph:
        twins.append(dataclasses.replace(setting.config, fullgraph=False))
    if setting.config.dynamic is False:
        twins.append(dataclasses.replace(setting.config, dynamic=None))
    return [Setting(config, setting.batch_size) for config in twins]


class SettingSampler(optuna.samplers.BaseSampler):
    """Gives Optuna's ``ask`` the parameters that ``pick`` chooses.

    Args:
        space: fixes the choices of each parameter for the whole study.
        pick: chooses the next setting.
    """

    def __init__(self, space: Space, pick: Callable[[], Setting]) -> None:
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in space.choices().items()
        }
        self._pick = pick

    @property
    def distributions(self) -> Mapping[str, BaseDistribution]:
        """Name and choices of each parameter."""
        return self._distributions

    def infer_relative_search_space(
        self, study: optuna.Study, trial: optuna.trial.FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters are chosen together."""
        return self._distributions

    def sample_relative(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The parameters of the next setting."""
        return self._pick().params()

    def sample_independent(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Never needed: :meth:`sample_relative` gives every parameter."""
        raise NotImplementedError(param_name)
