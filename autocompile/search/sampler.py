"""Optuna samplers over the finite list of settings: they choose the next setting.

They read only the Optuna study: values (speed-ups over eager) and user attributes (``outcome``,
``message``, ``seconds``, ``spread``) of its trials. They work with plain ``study.optimize``.
"""

from __future__ import annotations

import functools
import math
import random
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from autocompile.search.effects import Effects, Prior, expected_gain
from autocompile.settings.config import DEFAULT_INDUCTOR, Setting, choices

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
# Failures of one kind mostly have one cause: frozen weights of a model with a cache failed 8 times.
_LESS_LIKELY, _MANY = 3.0, 20

LEFT, RUNNING, FAILED, WORKED = range(4)  # what has become of a setting
_STATES = {TrialState.COMPLETE: WORKED, TrialState.PRUNED: FAILED}
Company = Literal["none", "eager", "all"]


class Rest(NamedTuple):
    """A setting that was not tried, and how much faster than the best it may be, as fractions."""

    setting: Setting
    likely: float  # what the model of the search expects
    most: float  # what it exceeds with a chance of one in ten


@dataclass
class Seen:
    """What the trials of a study say of listed settings, as vectors over the list."""

    state: Any  # of the setting's last trial; as if it had none if that was interrupted
    values: Any  # log speed-ups, NaN where there is none
    spreads: Any  # widths of their 95 % intervals
    seconds: Any  # that its process took; 0 if it had none
    # Positions of the settings of each group of similar failures in processes. They say nothing of
    # speed, but of how likely settings like them are to fail.
    failures: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


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

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """The setting with these parameters; KeyError if it is not in the list."""
        return self.settings[self._by_params[frozenset(params.items())]]

    def params(self, setting: Setting) -> dict[str, Any]:
        return self._params[self._position[setting]]

    def seen(self, study: optuna.Study) -> Seen:
        """What the study says of listed settings; of two trials of a setting the newer counts."""
        count = len(self.settings)
        seen = Seen(np.zeros(count, int), np.full(count, np.nan), np.zeros(count), np.zeros(count))
        for trial in study.get_trials(deepcopy=False):
            i = self._by_params.get(frozenset(trial.params.items()))
            if i is None or trial.state is TrialState.FAIL:
                continue
            told = trial.user_attrs
            seen.state[i] = _STATES.get(trial.state, RUNNING)
            seen.seconds[i] = told.get("seconds") or 0.0
            seen.values[i] = math.log(trial.value) if trial.value and trial.value > 0 else np.nan
            seen.spreads[i] = told.get("spread", 0.0)
            if seen.state[i] == FAILED and seen.seconds[i]:
                group = seen.failures[_fingerprint(told)]
                if i not in group:
                    group.append(i)
        return seen

    def rest(self, study: optuna.Study) -> list[Rest]:
        """The untried settings that may be worth their seconds, as far as the sampler knows."""
        return []

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


def _fingerprint(told: Mapping[str, Any]) -> str:
    """The outcome and message without numbers, addresses and paths, equal for similar failures."""
    words = re.sub(r"0x[0-9a-f]+|\d+|\S*[/\\]\S+", "#", told.get("message", ""))
    return f"{told.get('outcome', '')} {words[:120]}"


class Scores(NamedTuple):
    """Of the settings that may be tried now."""

    positions: Any
    gains: Any
    ranks: Any


class Known(NamedTuple):
    """What is known and expected of each setting."""

    seen: Seen
    mean: Any  # of the log speed-up
    deviation: Any  # of the same
    best: Any  # of its phase and batch size, the best log speed-up that is sure
    leader: Any  # the position of the setting that has it, or -1
    doubt: Any  # what divides its expected gain, for failures that resemble it


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
        self._has, self._cell = self._effects.has, self._effects.cell
        self._weight = np.where(self._is_own, 1.0, _OTHERS)
        self._is_first = np.array([s.config.is_plain_eager for s in settings])  # speed-ups need it
        self._is_eager = np.array([s.config.is_eager for s in settings])
        self._is_look = _plainest_of_families(settings, self._is_own)
        # A setting that its plainer twin may answer waits until that has ended.
        twins = [self._position.get(t) if (t := s.plainer_twin) else None for s in settings]
        self._has_twin = np.array([twin is not None for twin in twins])
        self._twin = np.array([twin or 0 for twin in twins])
        self._last: tuple[Any, Known] | None = None

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        scores = self.scores(study)
        if not len(scores.positions):
            raise RuntimeError("every setting has been tried")
        return self._params[self._best(scores)]

    def _best(self, scores: Scores) -> int:
        return int(scores.positions[np.argmax(scores.ranks)])

    def has_next(self, study: optuna.Study) -> bool:
        """Whether a setting may begin now; the baseline may have to wait for what runs."""
        scores, is_running = self.scores(study), self._known(study).seen.state == RUNNING
        if not len(scores.positions):
            return False
        compiles = is_running & ~self._is_eager
        beside = {"none": is_running, "eager": compiles, "all": compiles & False}[self.company]
        return not (self._is_baseline[self._best(scores)] and beside.any())

    def is_done(self, study: optuna.Study) -> bool:
        """Whether no setting is left that is expected to gain enough."""
        return bool((self.scores(study).gains < _ENOUGH).all())

    def scores(self, study: optuna.Study) -> Scores:
        """The scores of the settings that may be tried now: expected gain, and that per second."""
        known = self._known(study)
        state = known.seen.state
        seconds = self._seconds(known.seen)
        fits = self._is_first | self._is_baseline | (seconds <= self.limit_s)
        at = np.flatnonzero(self._may_work(state) & ~self._waits(state) & fits)
        mean, deviation, best = self._beside_running(known)
        weight, leader = self._weight[at], known.leader[at]
        gains = expected_gain(mean[at], deviation[at], best[at]) * weight / known.doubt[at]
        part = _PART * self._is_part(at, leader)
        bonus = np.maximum(
            np.where(self._is_default[at], _DEFAULT, part), _LOOK * self._is_look[at]
        )
        gains += weight * bonus + self._is_first[at]
        # Where the time is short, nearly all that fits is the last of its slot.
        least_s = self.limit_s / 2 if self.company == "all" else 0.0
        # Eager mode begins before all others, and the baseline where others may run beside it.
        first = self._is_first[at] + (self.company != "none") * 1e-3 * self._is_baseline[at]
        ranks = gains / np.maximum(seconds[at], least_s) + 1e6 * weight * first
        mantissas, exponents = np.frexp(ranks)
        return Scores(at, gains, np.ldexp(np.round(mantissas, _DIGITS), exponents))

    def rest(self, study: optuna.Study) -> list[Rest]:
        """The untried settings that may be worth their seconds, largest expected gain first.

        Of each phase at the user's own batch size, and not of what failures speak against.
        """
        known = self._known(study)
        state = known.seen.state
        waits = self._has_twin & (state[self._twin] != FAILED)
        at = np.flatnonzero(self._may_work(state) & self._is_own & ~waits & ~self._is_eager)
        mean, deviation, best = known.mean[at], known.deviation[at], known.best[at]
        gains = expected_gain(mean, deviation, best) / known.doubt[at]
        likely, most = np.expm1(mean - best), np.expm1(mean + _ONE_IN_TEN * deviation - best)
        return [
            Rest(self.settings[at[i]], float(likely[i]), float(most[i]))
            for i in np.argsort(-gains)
            if gains[i] >= _WORTH
        ]

    def _known(self, study: optuna.Study) -> Known:
        """What is known by now, computed once after each change of a trial."""
        trials = study.get_trials(deepcopy=False)
        changed = study.study_name, [(t.state, len(t.params)) for t in trials]
        if self._last is None or self._last[0] != changed:
            seen = self.seen(study)
            surely = seen.values - seen.spreads / 2
            measured = np.flatnonzero(~np.isnan(surely))
            by_speed = measured[np.argsort(surely[measured], kind="stable")]
            best, leader = np.zeros(len(self._cell)), np.full(len(self._cell), -1)
            best[self._cell[by_speed]] = np.maximum(0.0, surely[by_speed])
            leader[self._cell[by_speed]] = by_speed
            mean, deviation = self._effects.posterior(seen.values, seen.spreads)
            groups, worked = seen.failures.values(), seen.state == WORKED
            doubt = doubts(groups, self._has, self._effects.phase, worked)
            found = Known(seen, mean, deviation, best[self._cell], leader[self._cell], doubt)
            self._last = changed, found
        return self._last[1]

    def _beside_running(self, known: Known) -> tuple[Any, Any, Any]:
        """Mean, deviation and best, as if what runs had reached its mean."""
        running = np.flatnonzero(known.seen.state == RUNNING)
        if not len(running):
            return known.mean, known.deviation, known.best
        values, spreads, best = known.seen.values.copy(), known.seen.spreads.copy(), known.best
        values[running], spreads[running] = known.mean[running], 0.0
        for i in running:
            best = np.where(self._cell == self._cell[i], np.maximum(best, known.mean[i]), best)
        return (*self._effects.posterior(values, spreads), best)

    def _may_work(self, state: Any) -> Any:
        """What is left, but for phases and batch sizes in which eager mode itself fails."""
        without = np.unique(self._cell[self._is_first & (state == FAILED)])
        return (state == LEFT) & ~np.isin(self._cell, without)

    def _waits(self, state: Any) -> Any:
        """Which settings another one comes before: a twin that may answer it, or the baseline.

        Nothing else is compiled beside or before plain ``torch.compile()`` of each phase, which
        tells what a compile of this model takes, but where all may run beside it.
        """
        waits = self._has_twin & (state[self._twin] < FAILED)
        if self.company != "all" and (self._is_baseline & (state < FAILED)).any():
            waits |= ~self._is_eager & ~self._is_baseline
        if self.company == "none" and (self._is_baseline & (state == RUNNING)).any():
            waits[:] = True
        return waits

    def _is_part(self, positions: Any, leaders: Any) -> Any:
        """Whether each has all features of the leader at its batch size but one; -1: none leads."""
        own, leading = self._has[positions], self._has[leaders]
        is_less = leading.sum(axis=1) - own.sum(axis=1) == 1
        return (leaders >= 0) & is_less & ~(own & ~leading).any(axis=1)

    def _seconds(self, seen: Seen) -> Any:
        """What each setting's trial is expected to take.

        The prediction times the ratio of actual to predicted seconds so far. Compiles of a large
        model take many times as long as those of the tables, and its eager trials do not: each kind
        has a ratio of its own.
        """
        expected_s, took = self._cost_s.copy(), seen.seconds > 0
        for kind in (self._is_eager, ~self._is_eager):
            logs = np.log(seen.seconds[took & kind] / self._cost_s[took & kind])
            expected_s[kind] *= math.exp(logs.sum() / (len(logs) + _PRIOR_WEIGHT))
        return np.where(
            self._has_twin & (seen.state[self._twin] == WORKED), _ANSWERED_S, expected_s
        )


def _plainest_of_families(settings: Sequence[Setting], is_own: Any) -> Any:
    """Which settings stand for a family of their phase: those with the fewest features of it."""
    found: dict[tuple[str, str], int] = {}
    order = sorted(np.flatnonzero(is_own).tolist(), key=lambda i: len(settings[i].config.features))
    for i in order:
        for family in settings[i].config.families:
            found.setdefault((settings[i].phase, family), i)
    return np.isin(np.arange(len(settings)), [*found.values()])


def doubts(failures: Collection[Sequence[int]], has: Any, phase: Any, worked: Any) -> Any:
    """1 for settings that no failure resembles; grows with the number of similar failures.

    Args:
        failures: positions of the settings of each group of similar failures. Their common features
            are the best guess at the cause.
        has: which setting (row) has which feature (column); ``phase``: which has which phase.
        worked: which settings have worked; what shares the features too speaks against the guess.
    """
    found = np.ones(len(has))
    for group in failures:
        common = has[list(group)].all(axis=0)
        alike = has[:, common].all(axis=1)
        if len({*phase[list(group)]}) == 1:
            alike &= phase == phase[group[0]]
        count = min(len(group) - int((alike & worked).sum()), _MANY)
        if common.any() and count > 0:
            found *= np.where(alike, _LESS_LIKELY**count, 1.0)
    return found


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
    name: str | BaseSampler,
    settings: Sequence[Setting],
    priors: Mapping[str, Prior],
    own_sizes: Mapping[str, int | None],
    seed: int,
) -> ListedSampler:
    """The sampler of that name, one of ``SAMPLERS``, or over any other one of Optuna's kind."""
    if name == "portfolio":
        return PortfolioSampler(settings, priors, own_sizes)
    if isinstance(name, BaseSampler):
        return FiniteSampler(settings, name, seed, own_sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return FiniteSampler(settings, _INNER[name](seed=seed), seed, own_sizes)
