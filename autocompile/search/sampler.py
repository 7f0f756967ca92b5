"""The order in which settings are tried, as an Optuna sampler over a finite list.

Optuna's own samplers propose failures and repeats again in spaces this small, so the list of what
is left decides, and a simple model of what is known orders it: main effects of each dimension on
the log speed-up, shrunk towards zero, times the chance to work, over the predicted cost.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from autocompile.ranking import with_refreshes
from autocompile.record import Outcome, Record
from autocompile.search.space import Setting, Space

__all__ = ["Effects", "SettingSampler", "next_setting", "plainer_twins"]

_PRIOR_WEIGHT = 1.0  # how many observations of "no difference" each value starts with
_CURIOSITY = 0.1  # log speed-up that an untried value may hide
_FIRST_COST_S = 15.0


@dataclasses.dataclass
class _Effect:
    """What is known of one value of one dimension."""

    tried: int = 0
    fine: int = 0
    measured: int = 0
    log_speedup: float = 0.0
    timed: int = 0
    cost_s: float = 0.0


def _values(setting: Setting) -> list[tuple[str, Any]]:
    values = setting.params()
    # A mode's effect is its backend's own, and batch sizes differ in what a mode brings.
    values["mode"] = (setting.config.backend, setting.config.mode)
    return list(values.items())


class Effects:
    """Main effects of the values that have been tried; each record is looked at once."""

    def __init__(self) -> None:
        self._known: defaultdict[tuple[str, Any], _Effect] = defaultdict(_Effect)

    def add(self, record: Record) -> None:
        """Learn from a trial."""
        speedup = None
        if record.ok and record.measurement:
            seen = record.measurement.speedup
            speedup = with_refreshes(seen, [record], record.measurement.eager_call_s).value
        for value in _values(Setting(record.config, record.batch_size)):
            effect = self._known[value]
            effect.tried += 1
            effect.fine += record.outcome is Outcome.OK
            if speedup is not None:
                effect.measured += 1
                effect.log_speedup += math.log(speedup)
            if record.wall_s:
                effect.timed += 1
                effect.cost_s += record.wall_s

    def score(self, setting: Setting) -> float:
        """Expected gain times the chance to work, over the predicted seconds."""
        gain, works, cost = 0.0, 1.0, _FIRST_COST_S
        for value in _values(setting):
            seen = self._known.get(value, _UNKNOWN)
            gain += seen.log_speedup / (seen.measured + _PRIOR_WEIGHT)
            gain += _CURIOSITY / math.sqrt(1 + seen.measured)
            works *= (seen.fine + _PRIOR_WEIGHT) / (seen.tried + _PRIOR_WEIGHT)
            if value[0] == "mode" and seen.timed:
                cost = seen.cost_s / seen.timed
        return math.exp(gain) * works / cost


_UNKNOWN = _Effect()


def next_setting(
    space: Space, left: Collection[Setting], running: Collection[Setting], effects: Effects
) -> Setting | None:
    """The setting to try next.

    Args:
        space: of the phase.
        left: neither tried nor running, in order.
        running: being tried now.
        effects: what is known so far.

    Returns:
        None where each that is left waits for a twin that is running and may answer it.
    """
    for setting in (*space.baselines(), *space.unusable):
        if setting in left:
            return setting
    # A twin that the first one's result may answer for free is not tried before it is there.
    waiting = {*left, *running}
    free = [s for s in left if not any(twin in waiting for twin in plainer_twins(s))]
    return max(free, key=effects.score, default=None)


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
