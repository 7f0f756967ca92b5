"""Optuna samplers over the finite list of settings: they choose the next setting.

They read only the Optuna study: values (speed-ups over eager) and user attributes (``outcome``,
``message``, ``seconds``, ``spread``) of its trials. They work with plain ``study.optimize``.
"""

from __future__ import annotations

import functools
import math
import random
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from autocompile.search.effects import Effects, Prior, codes, expected_gain, feature_table
from autocompile.search.seen import FAILED, LEFT, RUNNING, WORKED, Seen, doubts
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.setting import Setting, choices

__all__ = ["SAMPLERS", "FiniteSampler", "ListedSampler", "PortfolioSampler", "make_sampler"]

_INNER: Mapping[str, Callable[..., BaseSampler]] = {
    "tpe": functools.partial(optuna.samplers.TPESampler, multivariate=True),
    "random": optuna.samplers.RandomSampler,
}
SAMPLERS = ("portfolio", *_INNER)
_OTHERS = 0.5  # weight of a gain at another batch size than the user's own
_DEFAULT = 0.05  # bonus for plain torch.compile(), to which all settings are compared
_LOOK = 0.05  # bonus for what stands for a backend or a family of modes that was not tried yet
_PART = 0.01  # bonus for the leader with one field at its default, if that had no effect
_ENOUGH = 0.002  # expected log gain below which the search ends
_ANSWERED_S = 0.01  # seconds of a setting that needs no process
_PRIOR_WEIGHT = 0.5  # weight of the predicted seconds, in trials: the first tells nearly all
_WORTH = 0.01  # expected log gain of an untried setting above which the answer stays open
_ONE_IN_TEN = 1.28  # standard deviations above the mean of a normal variable
_DIGITS = 8  # of ranks: those that differ by less are equal, and the first in the list comes next


class Rest(NamedTuple):
    """A setting that was not tried, and how much faster than the best it may be, as fractions.

    Attributes:
        likely: what the model of the search expects.
        most: what it exceeds with a chance of one in ten.
    """

    setting: Setting
    likely: float
    most: float


Company = Literal["none", "eager", "all"]


class ListedSampler(BaseSampler):
    """A sampler over a list of settings: all that may be tried, of all phases and batch sizes.

    Args:
        settings: the list.
        own_sizes: the user's own batch size by phase, which has priority.

    Attributes:
        baselines: plain ``torch.compile()`` of each phase at the user's own batch size.
        limit_s: seconds that a trial may take; what is expected to take longer is not begun.
        company: what may run beside a baseline: nothing, eager trials or all.
    """

    def __init__(
        self, settings: Sequence[Setting], own_sizes: Mapping[str, int | None] | None = None
    ) -> None:
        self.settings, self.limit_s = tuple(settings), math.inf
        self.company: Company = "none"
        own = own_sizes or {}
        self._is_own = np.array([s.batch_size == own.get(s.phase, s.batch_size) for s in settings])
        self._is_default = np.array([s.config == DEFAULT_INDUCTOR for s in settings])
        self._is_baseline = self._is_default & self._is_own
        self.baselines = {self.settings[i] for i in np.flatnonzero(self._is_baseline)}
        # Without parameters that have only one value.
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values)
            for name, values in choices(settings).items()
            if len(values) > 1 or name == "backend"
        }
        every = [s.params() for s in self.settings]
        self._params = [{n: p[n] for n in self.distributions} for p in every]
        self._position = {s: i for i, s in enumerate(self.settings)}
        self._by_params = {frozenset(p.items()): i for i, p in enumerate(self._params)}
        self._seen = Seen(len(self.settings), lambda trial: self._at(trial.params))
        self._lock = threading.RLock()

    def _at(self, params: Mapping[str, Any]) -> int | None:
        return self._by_params.get(frozenset(params.items()))

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """The setting with these parameters; KeyError if it is not in the list."""
        return self.settings[self._by_params[frozenset(params.items())]]

    def params(self, setting: Setting) -> dict[str, Any]:
        return self._params[self._position[setting]]

    def seen(self, study: optuna.Study) -> Seen:
        """What the study says of listed settings."""
        with self._lock:
            self._seen.update(study.get_trials(deepcopy=False))
            return self._seen

    def rest(self, study: optuna.Study) -> list[Rest]:
        """The untried settings that may be worth their seconds, as far as the sampler knows."""
        return []

    def promise(self, study: optuna.Study, running: Iterable[Setting]) -> float:
        """The largest expected log speed-up of running settings over the best."""
        return 0.0

    def left(self, study: optuna.Study) -> list[Setting]:
        return [self.settings[i] for i in np.flatnonzero(self.seen(study).state == LEFT)]

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


class Scores(NamedTuple):
    """Of the settings that may be tried now."""

    positions: Any
    gains: Any
    ranks: Any


class PortfolioSampler(ListedSampler):
    """Looks at each family of settings once, then takes the largest expected gain per second.

    First begin eager mode of each phase and batch size and plain ``torch.compile()`` of each phase,
    to which all others are compared. Then whatever promises most per second, where the plainest
    setting of each family (:attr:`CompileConfig.families`) has a bonus until it is tried: what a
    prior expects decides when a family has its turn, and never that it has none.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        priors: Mapping[str, Prior] | None = None,
        own_sizes: Mapping[str, int | None] | None = None,
    ) -> None:
        super().__init__(settings, own_sizes)
        priors = {s.phase: (priors or {}).get(s.phase, Prior()) for s in settings}
        self._effects = Effects(self.settings, priors)
        self._cost_s = np.array([priors[s.phase].cost_s(s.config) for s in settings])
        self._cell = codes([s.cell for s in settings])
        self._weight = np.where(self._is_own, 1.0, _OTHERS)
        self._is_first = np.array([s.config.is_plain_eager for s in settings])  # speed-ups need it
        self._is_eager = np.array([s.config.is_eager for s in settings])
        self._is_look = _plainest_of_families(settings, self._is_own)
        twins = [self._position.get(t) if (t := s.plainer_twin) else None for s in settings]
        self._has_twin = np.array([twin is not None for twin in twins])
        self._twin = np.array([twin or 0 for twin in twins])
        _, self._has = feature_table(settings)
        self._phase = codes([s.phase for s in settings])
        self._doubts: tuple[int, Any] = -1, None
        self._scored: tuple[int, float, Scores] | None = None

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        scores = self.scores(study)
        if not len(scores.positions):
            raise RuntimeError("every setting has been tried")
        return self._params[int(scores.positions[np.argmax(scores.ranks)])]

    def has_next(self, study: optuna.Study) -> bool:
        return len(self.scores(study).positions) > 0

    def is_done(self, study: optuna.Study) -> bool:
        """Whether no setting is left that is expected to gain enough."""
        return bool((self.scores(study).gains < _ENOUGH).all())

    def scores(self, study: optuna.Study) -> Scores:
        """The scores of the settings that may be tried now.

        A setting that its plainer twin may answer waits until that has ended.
        """
        with self._lock:
            seen = self.seen(study)
            state = seen.version, self.limit_s
            if self._scored is None or self._scored[:2] != state:
                self._scored = (*state, self._scores_of(seen))
            return self._scored[2]

    def rest(self, study: optuna.Study) -> list[Rest]:
        """The untried settings that may be worth their seconds, largest expected gain first.

        Of each phase at the user's own batch size, and not of what failures speak against.
        """
        with self._lock:
            seen = self.seen(study)
            waits = self._has_twin & (seen.state[self._twin] != FAILED)
            left = np.flatnonzero(self._may_work(seen) & self._is_own & ~waits & ~self._is_eager)
            best, _ = self._leaders(seen)
            mean, deviation = (each[left] for each in self._effects.beside([]))
            over = best[self._cell[left]]
            gains = expected_gain(mean, deviation, over) / self._doubts_of(seen)[left]
            order = [i for i in np.argsort(-gains).tolist() if gains[i] >= _WORTH]
            return [
                Rest(
                    self.settings[left[i]],
                    math.expm1(mean[i] - over[i]),
                    math.expm1(mean[i] + _ONE_IN_TEN * deviation[i] - over[i]),
                )
                for i in order
            ]

    def promise(self, study: optuna.Study, running: Iterable[Setting]) -> float:
        with self._lock:
            seen = self.seen(study)
            best, _ = self._leaders(seen)
            at = np.array([self._position[s] for s in running], dtype=int)
            gains = (self._effects.mean[at] - best[self._cell[at]]) * self._weight[at]
            return float((gains / self._doubts_of(seen)[at]).max(initial=0.0))

    def _may_work(self, seen: Seen) -> Any:
        """What is left, but for phases and batch sizes in which eager mode itself fails."""
        without = np.unique(self._cell[self._is_first & (seen.state == FAILED)])
        return (seen.state == LEFT) & ~np.isin(self._cell, without)

    def _leaders(self, seen: Seen) -> tuple[Any, Any]:
        """By phase and batch size, the best log speed-up that is sure, and its position or -1."""
        self._effects.learn(seen.values, seen.spreads)
        surely = seen.values - seen.spreads / 2
        known = np.flatnonzero(~np.isnan(surely))
        by_speed = known[np.argsort(surely[known], kind="stable")]
        best, leader = np.zeros(len(self._cell)), np.full(len(self._cell), -1)
        best[self._cell[by_speed]] = np.maximum(0.0, surely[by_speed])
        leader[self._cell[by_speed]] = by_speed
        return best, leader

    def _scores_of(self, seen: Seen) -> Scores:
        waits = self._waits(seen)
        is_answered = self._has_twin & (seen.state[self._twin] == WORKED)
        seconds = np.where(is_answered, _ANSWERED_S, self._slowness(seen) * self._cost_s)
        fits = self._is_first | self._is_baseline | (seconds <= self.limit_s)
        left = np.flatnonzero(self._may_work(seen) & ~waits & fits)
        best, leader = self._leaders(seen)
        running = np.flatnonzero(seen.state == RUNNING)
        np.maximum.at(best, self._cell[running], self._effects.mean[running])
        mean, deviation = (each[left] for each in self._effects.beside(running.tolist()))
        gains = expected_gain(mean, deviation, best[self._cell[left]])
        weight = self._weight[left]
        gains *= weight / self._doubts_of(seen)[left]
        part = self._is_part(left, leader[self._cell[left]])
        bonus = np.maximum(
            np.where(self._is_default[left], _DEFAULT, _PART * part), _LOOK * self._is_look[left]
        )
        gains += weight * bonus + self._is_first[left]
        first = self._is_first[left] + (self.company != "none") * 1e-3 * self._is_baseline[left]
        # Where the time is short, nearly all that fits is the last of its slot.
        least_s = self.limit_s / 2 if self.company == "all" else 0.0
        ranks = gains / np.maximum(seconds[left], least_s) + 1e6 * weight * first
        mantissas, exponents = np.frexp(ranks)
        return Scores(left, gains, np.ldexp(np.round(mantissas, _DIGITS), exponents))

    def _waits(self, seen: Seen) -> Any:
        """Which settings another one comes before: a twin that may answer it, or the baseline.

        Nothing else is compiled beside or before plain ``torch.compile()`` of each phase, which
        tells what a compile of this model takes, but in a short budget.
        """
        waits = self._has_twin & (seen.state[self._twin] < FAILED)
        if self.company != "all" and (self._is_baseline & (seen.state < FAILED)).any():
            waits |= ~self._is_eager & ~self._is_baseline
        return waits

    def _is_part(self, positions: Any, leaders: Any) -> Any:
        """Whether each has all features of the leader at its batch size but one; -1: none leads."""
        own, leading = self._has[positions], self._has[leaders]
        is_less = leading.sum(axis=1) - own.sum(axis=1) == 1
        return (leaders >= 0) & is_less & ~(own & ~leading).any(axis=1)

    def _doubts_of(self, seen: Seen) -> Any:
        if self._doubts[0] != seen.version:
            found = doubts(seen.failures.values(), self._has, self._phase, seen.state == WORKED)
            self._doubts = seen.version, found
        return self._doubts[1]

    def _slowness(self, seen: Seen) -> Any:
        """Ratio of the actual to the predicted seconds of trials, for each setting.

        Compiles of a large model take many times as long as those of the tables, and its eager
        trials do not: each kind has a ratio of its own.
        """
        found = np.ones(len(self._cost_s))
        took = seen.seconds > 0
        for kind in (self._is_eager, ~self._is_eager):
            logs = np.log(seen.seconds[took & kind] / self._cost_s[took & kind])
            found[kind] = math.exp(logs.sum() / (len(logs) + _PRIOR_WEIGHT))
        return found


def _plainest_of_families(settings: Sequence[Setting], is_own: Any) -> Any:
    """Which settings stand for a family of their phase: those with the fewest features of it."""
    found: dict[tuple[str, str], int] = {}
    order = sorted(np.flatnonzero(is_own).tolist(), key=lambda i: len(settings[i].config.features))
    for i in order:
        for family in settings[i].config.families:
            found.setdefault((settings[i].phase, family), i)
    stands = np.zeros(len(settings), dtype=bool)
    stands[list(found.values())] = True
    return stands


class FiniteSampler(ListedSampler):
    """Moves each proposal of another sampler to the nearest untried setting.

    Optuna's samplers repeat settings and failures in spaces this small. The seed is for the choice
    among equally near settings.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        inner: BaseSampler,
        seed: int,
        own_sizes: Mapping[str, int | None] | None = None,
    ) -> None:
        super().__init__(settings, own_sizes)
        self._inner, self._random = inner, random.Random(seed)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
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
    """The sampler of that name, one of ``SAMPLERS``."""
    if name == "portfolio":
        return PortfolioSampler(settings, priors, own_sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return FiniteSampler(settings, _INNER[name](seed=seed), seed, own_sizes)
