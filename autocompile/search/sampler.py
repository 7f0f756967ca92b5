"""Optuna samplers over the finite list of settings: they choose the next setting.

:class:`PortfolioSampler` reads only the Optuna study: values (speed-ups over eager) and user
attributes (``outcome``, ``message``, ``seconds``, ``spread``) of its trials. It works with plain
``study.optimize``. It chooses eager mode of each phase and batch size first, then the largest
expected gain per second (:mod:`autocompile.search.effects`).

Optuna's samplers repeat settings and failures in spaces this small. :class:`FiniteSampler` moves
their proposals to the nearest untried setting.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from autocompile.errors import UsageError
from autocompile.search.effects import Effects, Prior, expected_gain
from autocompile.search.failures import doubt, failures_of
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.space.space import Setting, choices, plainer_twins

__all__ = ["SAMPLERS", "FiniteSampler", "PortfolioSampler", "make_sampler"]

SAMPLERS = ("portfolio", "tpe", "gp", "random")
_OTHERS = 0.5  # weight of a gain at another batch size than the user's own
_DEFAULT = 0.05  # bonus for plain torch.compile(), to which all settings are compared
_PART = 0.01  # bonus for the leader without one of its fields, which may have no effect
_ENOUGH = 0.002  # expected log gain below which the search ends
_ANSWERED_S = 0.01  # seconds of a setting that needs no process
_PRIOR_WEIGHT = 4.0  # weight of the predicted seconds, in trials

_Scores = dict[Setting, tuple[float, float, float]]
Params = tuple[tuple[str, Any], ...]
Cell = tuple[str, int | None]


class _Listed(optuna.samplers.BaseSampler):
    """A sampler over a list of settings.

    Args:
        settings: all that may be tried, of all phases and batch sizes.
    """

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.settings = tuple(settings)
        # Without parameters that have only one value.
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values)
            for name, values in choices(settings).items()
            if len(values) > 1 or name == "backend"
        }
        self._params = {s: self._varying(s) for s in self.settings}
        self._by_params = {_key(params): s for s, params in self._params.items()}

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """The setting with these parameters.

        Raises:
            KeyError: it is not in the list.
        """
        return self._by_params[_key(params)]

    def params(self, setting: Setting) -> dict[str, Any]:
        """The parameters of a listed setting."""
        return self._params[setting]

    def _varying(self, setting: Setting) -> dict[str, Any]:
        return {n: v for n, v in setting.params().items() if n in self.distributions}

    def seen(self, study: optuna.Study) -> dict[Setting, FrozenTrial]:
        """The started trials of listed settings, without interrupted ones."""
        found: dict[Setting, FrozenTrial] = {}
        for trial in study.get_trials(deepcopy=False):
            setting = self._by_params.get(_key(trial.params))
            if setting is not None and trial.state is not TrialState.FAIL:
                found[setting] = trial
        return found

    def left(self, study: optuna.Study) -> list[Setting]:
        """The settings without a started trial."""
        begun = self.seen(study)
        return [s for s in self.settings if s not in begun]

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters, since they are chosen together."""
        return self.distributions

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # fmt: skip
        """Never called: :meth:`sample_relative` returns all parameters."""
        raise NotImplementedError(param_name)


def _lacks_one(own: frozenset[str], leading: frozenset[str]) -> bool:
    return own < leading and len(leading) - len(own) == 1


def _key(params: Mapping[str, Any]) -> Params:
    return tuple(sorted(params.items()))


class PortfolioSampler(_Listed):
    """Chooses the setting with the largest expected gain per second.

    Args:
        settings: all that may be tried, of all phases and batch sizes.
        priors: by phase, from recorded tables; may lack phases.
        own_sizes: the user's own batch size by phase, which has priority.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        priors: Mapping[str, Prior] | None = None,
        own_sizes: Mapping[str, int | None] | None = None,
    ) -> None:
        super().__init__(settings)
        self._priors = {s.phase: (priors or {}).get(s.phase, Prior()) for s in settings}
        self._own = own_sizes or {}
        self._effects = Effects(self.settings, self._priors)
        self._known: tuple[tuple[int, int], dict[Setting, tuple[float, float, float]]] = (
            (-1, 0),
            {},
        )
        listed = set(self.settings)
        self._twins = {s: listed & set(plainer_twins(s)) for s in self.settings}

    def has_next(self, study: optuna.Study) -> bool:
        """Whether a setting may be tried now; settings that may reuse a running trial wait."""
        return bool(self._scores(study))

    def is_done(self, study: optuna.Study) -> bool:
        """Whether no remaining setting has a relevant expected gain."""
        scores = self._scores(study)
        return not scores or max(gain for gain, _, _ in scores.values()) < _ENOUGH

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The parameters of the next setting.

        Raises:
            RuntimeError: none is left.
        """
        scores = self._scores(study)
        if not scores:
            raise RuntimeError("every setting has been tried")
        best = max(scores, key=lambda s: scores[s][0] / scores[s][1] + scores[s][2])
        return self.params(best)

    def _scores(self, study: optuna.Study) -> _Scores:
        """(expected gain, seconds, priority) of each remaining setting."""
        begun = self.seen(study)
        # Settings that may reuse a plainer twin's result wait for it.
        finished = {s for s, t in begun.items() if t.state.is_finished()}
        if self._known[0] == (len(begun), len(finished)):
            return self._known[1]
        left = [s for s in self.settings if s not in begun and self._twins[s] <= finished]
        if not left:
            return {}
        values = {s: math.log(t.value) for s, t in begun.items() if t.value and t.value > 0}
        spreads = {s: float(begun[s].user_attrs.get("spread", 0.0)) for s in values}
        running = [s for s, t in begun.items() if t.state is TrialState.RUNNING]
        known = dict(values)
        best = {s.cell: 0.0 for s in self.settings}
        if running:  # assume that they reach their expected values
            expected, _ = self._effects.expected(values, running, spreads)
            for setting, value in zip(running, map(float, expected), strict=True):
                known[setting] = value
                best[setting.cell] = max(best[setting.cell], value)
        mean, deviation = self._effects.expected(known, left, spreads)
        leading: dict[Cell, frozenset[str]] = {s.cell: frozenset() for s in self.settings}
        surely = {s: value - spreads[s] / 2 for s, value in values.items()}
        for setting in sorted(surely, key=surely.__getitem__):
            best[setting.cell] = max(best[setting.cell], surely[setting])
            leading[setting.cell] = setting.config.features
        gains = expected_gain(mean, deviation, [best[s.cell] for s in left])
        failures = failures_of(begun)
        slowness = self._slowness(begun)
        scores = {}
        for setting, gain in zip(left, map(float, gains), strict=True):
            gain *= self._weight(setting) / doubt(setting, failures)
            if setting.config == DEFAULT_INDUCTOR:
                gain += _DEFAULT * self._weight(setting)
            elif _lacks_one(setting.config.features, leading[setting.cell]):
                gain += _PART * self._weight(setting)
            seconds = slowness * self._priors[setting.phase].cost_s(setting.config)
            if any(
                t.state is TrialState.COMPLETE for t in map(begun.get, self._twins[setting]) if t
            ):
                seconds = _ANSWERED_S
            first = 1e6 * self._weight(setting) if setting.config.is_plain_eager else 0.0
            scores[setting] = (gain + (first > 0), seconds, first)
        self._known = ((len(begun), len(finished)), scores)
        return scores

    def _weight(self, setting: Setting) -> float:
        own = self._own.get(setting.phase, setting.batch_size)
        return 1.0 if setting.batch_size == own else _OTHERS

    def _slowness(self, begun: Mapping[Setting, FrozenTrial]) -> float:
        """Ratio of the actual to the predicted seconds of trials."""
        pairs = [
            (float(t.user_attrs["seconds"]), self._priors[s.phase].cost_s(s.config))
            for s, t in begun.items()
            if t.user_attrs.get("seconds")
        ]
        logs = sum(math.log(took / predicted) for took, predicted in pairs)
        return math.exp(logs / (len(pairs) + _PRIOR_WEIGHT))


class FiniteSampler(_Listed):
    """Moves each proposal of another sampler to the nearest untried setting.

    Args:
        settings: all that may be tried.
        inner: the other sampler.
        seed: for the choice among equally near settings.
    """

    def __init__(
        self, settings: Sequence[Setting], inner: optuna.samplers.BaseSampler, seed: int
    ) -> None:
        super().__init__(settings)
        self._inner, self._random = inner, random.Random(seed)

    def has_next(self, study: optuna.Study) -> bool:
        """Whether a setting may be tried now."""
        return bool(self.left(study))

    def is_done(self, study: optuna.Study) -> bool:
        """Whether every setting has been tried."""
        return not self.left(study)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The parameters of the next setting.

        Raises:
            RuntimeError: none is left.
        """
        left = self.left(study)
        if not left:
            raise RuntimeError("every setting has been tried")
        # Eager mode first: speed-ups need it.
        if eager := [s for s in left if s.config.is_plain_eager]:
            return self.params(eager[0])
        space = self._inner.infer_relative_search_space(study, trial)
        proposed = dict(self._inner.sample_relative(study, trial, space))
        for name, distribution in self.distributions.items():
            if name not in proposed:
                proposed[name] = self._inner.sample_independent(study, trial, name, distribution)
        self._random.shuffle(left)
        return self.params(min(left, key=lambda s: _distance(self.params(s), proposed)))

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Pass the result of a trial to the inner sampler."""
        self._inner.after_trial(study, trial, state, values)


def _distance(params: Mapping[str, Any], proposed: Mapping[str, Any]) -> int:
    return sum(value != proposed[name] for name, value in params.items())


def make_sampler(
    name: str,
    settings: Sequence[Setting],
    priors: Mapping[str, Prior],
    own_sizes: Mapping[str, int | None],
    seed: int,
) -> PortfolioSampler | FiniteSampler:
    """The sampler of that name.

    Raises:
        UsageError: unknown name.
    """
    if name == "portfolio":
        return PortfolioSampler(settings, priors, own_sizes)
    inner: optuna.samplers.BaseSampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":
            inner = optuna.samplers.TPESampler(seed=seed, multivariate=True)
        elif name == "gp":
            inner = optuna.samplers.GPSampler(seed=seed)
        elif name == "random":
            inner = optuna.samplers.RandomSampler(seed=seed)
        else:
            raise UsageError(f"unknown sampler {name!r} (choose from: {', '.join(SAMPLERS)})")
    return FiniteSampler(settings, inner, seed)
