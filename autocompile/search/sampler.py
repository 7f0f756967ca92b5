"""The order in which settings are tried, as an Optuna sampler over a finite list.

Optuna's own samplers propose failures and repeats again in spaces this small, so the list of what
is left decides, and a simple model of what is known orders it: main effects of each dimension on
the log speed-up, shrunk towards zero, times the chance to work, over the predicted cost.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from autocompile.config import DEFAULT_INDUCTOR
from autocompile.ranking import with_refreshes
from autocompile.record import Outcome, Record
from autocompile.search.space import Setting, Space

__all__ = [
    "Effects",
    "SettingSampler",
    "fingerprint",
    "next_setting",
    "plainer_twins",
    "resets",
]

_PRIOR_WEIGHT = 1.0  # how many observations of "no difference" each value starts with
_CURIOSITY = 0.1  # log speed-up that an untried value may hide
_FIRST_COST_S = 15.0
_PLACES = ("backend", "environment")  # what is compiled with, not how
_EAGERS_OWN = ("optimizer", "memory_format")  # what eager mode gains by: at times most of all


@dataclasses.dataclass
class _Effect:
    """What is known of one value of one dimension."""

    tried: int = 0
    fine: int = 0
    measured: int = 0
    log_speedup: float = 0.0
    timed: int = 0
    cost_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Failure:
    """What the settings that failed in one way have in common, and how many they are."""

    common: frozenset[tuple[str, Any]]
    count: int = 0


def fingerprint(record: Record) -> str:
    """Equal for failures that look alike: numbers, addresses and paths in the message differ."""
    words = re.sub(r"0x[0-9a-f]+|\d+|\S*[/\\]\S+", "#", record.message)
    return f"{record.outcome.value} {record.step.value} {words[:120]}"


def _setting(record: Record) -> Setting:
    return Setting(record.config, record.batch_size)


def _values(setting: Setting) -> list[tuple[str, Any]]:
    values = setting.params()
    # A mode's effect is its backend's own, and batch sizes differ in what a mode brings.
    values["mode"] = (setting.config.backend, setting.config.mode)
    return list(values.items())


class Effects:
    """Main effects of the values that have been tried; each record is looked at once.

    What fails with one fingerprint fails for one reason, and what those settings have in common is
    the best guess at it: whatever has that in common with them too comes later.
    """

    def __init__(self) -> None:
        self._known: defaultdict[tuple[str, Any], _Effect] = defaultdict(_Effect)
        self._failures: dict[str, _Failure] = {}

    def add(self, record: Record) -> None:
        """Learn from a trial."""
        speedup = None
        if not record.ok:
            mark, values = fingerprint(record), frozenset(_values(_setting(record)))
            seen = self._failures.get(mark, _Failure(values))
            self._failures[mark] = _Failure(seen.common & values, seen.count + 1)
        if record.ok and record.measurement:
            measured = record.measurement.speedup
            speedup = with_refreshes(measured, [record], record.measurement.eager_call_s).value
        for value in _values(_setting(record)):
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
        mine = frozenset(_values(setting))
        for failure in self._failures.values():
            if failure.common <= mine:
                works /= 1 + failure.count
        return math.exp(gain) * works / cost


_UNKNOWN = _Effect()


def next_setting(
    space: Space,
    left: Collection[Setting],
    running: Collection[Setting],
    effects: Effects,
    leaders: Iterable[Setting] = (),
) -> Setting | None:
    """The setting to try next.

    First those without which no number means anything; then one of each backend in each
    environment, since by them settings differ most, and of what eager mode gains by, where nothing
    is compiled; then what tells whether each field of a leader matters, so that none is recommended
    for nothing; then by promise.

    Args:
        space: of the phase.
        left: neither tried nor running, in order.
        running: being tried now.
        effects: what is known so far.
        leaders: the best so far of each batch size.

    Returns:
        None where each that is left waits for a twin that is running and may answer it.
    """
    for setting in (*space.baselines(), *space.unusable):
        if setting in left:
            return setting
    tried = {_place(s) for s in space.settings if s not in left}
    if new := [s for s in left if _place(s) not in tried]:
        return min(new, key=lambda s: len(resets(s)))
    # A twin that the first one's result may answer for free is not tried before it is there.
    waiting = {*left, *running}
    free = [s for s in left if not any(twin in waiting for twin in plainer_twins(s))]
    simpler = {reset for leader in leaders for reset in resets(leader)}
    return max(free, key=lambda s: (s in simpler, effects.score(s)), default=None)


def _place(setting: Setting) -> tuple[Any, ...]:
    fields = (*_PLACES, *_EAGERS_OWN) if setting.config.is_eager else _PLACES
    return tuple(getattr(setting.config, field) for field in fields)


def plainer_twins(setting: Setting) -> list[Setting]:
    """Settings whose result answers this one if nothing broke the graph and nothing recompiled.

    Under ``fullgraph`` that compiles there is one graph, as without it, and torch does a few
    microseconds more at each call: it is never the faster one. ``dynamic=False`` is no such twin of
    ``None``: to set it at each call costs twice as much again.
    """
    if not setting.config.fullgraph:
        return []
    return [Setting(dataclasses.replace(setting.config, fullgraph=False), setting.batch_size)]


def resets(setting: Setting) -> list[Setting]:
    """The setting with one of its fields as ``torch.compile()`` has it, for each that differs."""
    plain, config = DEFAULT_INDUCTOR.to_dict(), setting.config
    fields = [n for n, v in config.to_dict().items() if n not in _PLACES and v != plain[n]]
    configs = [dataclasses.replace(config, **{n: getattr(DEFAULT_INDUCTOR, n)}) for n in fields]
    return [Setting(c, setting.batch_size) for c in configs]


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
