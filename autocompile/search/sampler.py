"""Optuna samplers over the finite list of settings: they choose the next setting.

They read only the Optuna study: values (speed-ups over eager) and user attributes (``outcome``,
``message``, ``seconds``, ``spread``) of its trials. They work with plain ``study.optimize``.
"""

from __future__ import annotations

import functools
import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from autocompile.errors import UsageError
from autocompile.search.effects import Effects, Prior, doubt, expected_gain, failures_of
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.setting import Setting, choices

__all__ = ["SAMPLERS", "FiniteSampler", "ListedSampler", "PortfolioSampler", "make_sampler"]

_INNER: Mapping[str, Callable[..., BaseSampler]] = {
    "tpe": functools.partial(optuna.samplers.TPESampler, multivariate=True),
    "gp": optuna.samplers.GPSampler,
    "random": optuna.samplers.RandomSampler,
}
SAMPLERS = ("portfolio", *_INNER)
_OTHERS = 0.5  # weight of a gain at another batch size than the user's own
_DEFAULT = 0.05  # bonus for plain torch.compile(), to which all settings are compared
_PART = 0.01  # bonus for the leader with one field at its default, if that had no effect
_ENOUGH = 0.002  # expected log gain below which the search ends
_ANSWERED_S = 0.01  # seconds of a setting that needs no process
_PRIOR_WEIGHT = 4.0  # weight of the predicted seconds, in trials

Begun = Mapping[Setting, FrozenTrial]


class ListedSampler(BaseSampler):
    """A sampler over a list of settings: all that may be tried, of all phases and batch sizes."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.settings = tuple(settings)
        # Without parameters that have only one value.
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values)
            for name, values in choices(settings).items()
            if len(values) > 1 or name == "backend"
        }
        self._params = {
            s: {n: v for n, v in s.params().items() if n in self.distributions} for s in settings
        }
        self._by_params = {frozenset(params.items()): s for s, params in self._params.items()}

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """The setting with these parameters; KeyError if it is not in the list."""
        return self._by_params[frozenset(params.items())]

    def params(self, setting: Setting) -> dict[str, Any]:
        return self._params[setting]

    def seen(self, study: optuna.Study) -> dict[Setting, FrozenTrial]:
        """The started trials of listed settings, without interrupted ones."""
        found: dict[Setting, FrozenTrial] = {}
        for trial in study.get_trials(deepcopy=False):
            setting = self._by_params.get(frozenset(trial.params.items()))
            if setting is not None and trial.state is not TrialState.FAIL:
                found[setting] = trial
        return found

    def left(self, study: optuna.Study) -> list[Setting]:
        begun = self.seen(study)
        return [s for s in self.settings if s not in begun]

    def has_next(self, study: optuna.Study) -> bool:
        return bool(self.left(study))

    def is_done(self, study: optuna.Study) -> bool:
        return not self.left(study)

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


class Score(NamedTuple):
    """Expected log gain of a setting, and the rank: the setting with the largest comes next."""

    gain: float
    rank: float


class PortfolioSampler(ListedSampler):
    """Chooses eager mode of each phase and batch size, then the largest expected gain per second.

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
        listed = set(self.settings)
        self._twin = {s: s.plainer_twin if s.plainer_twin in listed else None for s in settings}
        self._scored: tuple[tuple[int, int], dict[Setting, Score]] = ((-1, 0), {})

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the next setting.

        Raises:
            RuntimeError: none is left.
        """
        scores = self.scores(study)
        if not scores:
            raise RuntimeError("every setting has been tried")
        return self.params(max(scores, key=lambda s: scores[s].rank))

    def has_next(self, study: optuna.Study) -> bool:
        return bool(self.scores(study))

    def is_done(self, study: optuna.Study) -> bool:
        """Whether no setting is left that is expected to gain enough."""
        return all(score.gain < _ENOUGH for score in self.scores(study).values())

    def scores(self, study: optuna.Study) -> dict[Setting, Score]:
        """The score of each setting that may be tried now.

        A setting that its plainer twin may answer waits until that has ended.
        """
        begun = self.seen(study)
        ready = {None, *(s for s, t in begun.items() if t.state.is_finished())}
        state = len(begun), len(ready)
        if state != self._scored[0]:
            left = [s for s in self.settings if s not in begun and self._twin[s] in ready]
            self._scored = state, self._scores_of(left, begun) if left else {}
        return self._scored[1]

    def _scores_of(self, left: Sequence[Setting], begun: Begun) -> dict[Setting, Score]:
        values = {s: math.log(t.value) for s, t in begun.items() if t.value and t.value > 0}
        spreads = {s: float(begun[s].user_attrs.get("spread", 0.0)) for s in values}
        surely = {s: value - spreads[s] / 2 for s, value in values.items()}
        by_speed = sorted(surely, key=surely.__getitem__)
        leading = {s.cell: s.config.features for s in by_speed}
        best = {s.cell: 0.0 for s in self.settings}
        best |= {s.cell: max(0.0, surely[s]) for s in by_speed}
        known = dict(values)
        running = [s for s, t in begun.items() if t.state is TrialState.RUNNING]
        if running:  # assume that they reach their expected values
            expected, _ = self._effects.expected(values, running, spreads)
            for setting, value in zip(running, map(float, expected), strict=True):
                known[setting] = value
                best[setting.cell] = max(best[setting.cell], value)
        mean, deviation = self._effects.expected(known, left, spreads)
        gains = expected_gain(mean, deviation, [best[s.cell] for s in left])
        failures, slowness = failures_of(begun), self._slowness(begun)
        scores = {}
        for setting, gain in zip(left, map(float, gains), strict=True):
            config, own = setting.config, self._own.get(setting.phase, setting.batch_size)
            weight = 1.0 if setting.batch_size == own else _OTHERS
            leader = leading.get(setting.cell, frozenset())
            gain *= weight / doubt(setting, failures)
            if config == DEFAULT_INDUCTOR:
                gain += _DEFAULT * weight
            elif config.features < leader and len(config.features) == len(leader) - 1:
                gain += _PART * weight
            twin = self._twin[setting]
            is_answered = twin is not None and begun[twin].state is TrialState.COMPLETE
            seconds = slowness * self._priors[setting.phase].cost_s(config)
            is_first = config.is_plain_eager  # speed-ups need it
            gain += is_first
            rank = gain / (_ANSWERED_S if is_answered else seconds) + 1e6 * weight * is_first
            scores[setting] = Score(gain, rank)
        return scores

    def _slowness(self, begun: Begun) -> float:
        """Ratio of the actual to the predicted seconds of trials."""
        logs = [
            math.log(float(t.user_attrs["seconds"]) / self._priors[s.phase].cost_s(s.config))
            for s, t in begun.items()
            if t.user_attrs.get("seconds")
        ]
        return math.exp(sum(logs) / (len(logs) + _PRIOR_WEIGHT))


class FiniteSampler(ListedSampler):
    """Moves each proposal of another sampler to the nearest untried setting.

    Optuna's samplers repeat settings and failures in spaces this small. The seed is for the choice
    among equally near settings.
    """

    def __init__(self, settings: Sequence[Setting], inner: BaseSampler, seed: int) -> None:
        super().__init__(settings)
        self._inner, self._random = inner, random.Random(seed)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the next setting: eager mode first, since speed-ups need it.

        Raises:
            RuntimeError: none is left.
        """
        left = self.left(study)
        if not left:
            raise RuntimeError("every setting has been tried")
        if eager := [s for s in left if s.config.is_plain_eager]:
            return self.params(eager[0])
        space = self._inner.infer_relative_search_space(study, trial)
        proposed = dict(self._inner.sample_relative(study, trial, space))
        for name, distribution in self.distributions.items():
            if name not in proposed:
                proposed[name] = self._inner.sample_independent(study, trial, name, distribution)
        self._random.shuffle(left)
        return self.params(
            min(left, key=lambda s: sum(v != proposed[n] for n, v in self.params(s).items()))
        )

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState,
        values: Sequence[float] | None,
    ) -> None:  # fmt: skip
        self._inner.after_trial(study, trial, state, values)


def make_sampler(
    name: str,
    settings: Sequence[Setting],
    priors: Mapping[str, Prior],
    own_sizes: Mapping[str, int | None],
    seed: int,
) -> ListedSampler:
    """The sampler of that name.

    Raises:
        UsageError: unknown name.
    """
    if name not in SAMPLERS:
        raise UsageError(f"unknown sampler {name!r} (choose from: {', '.join(SAMPLERS)})")
    if name == "portfolio":
        return PortfolioSampler(settings, priors, own_sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return FiniteSampler(settings, _INNER[name](seed=seed), seed)
