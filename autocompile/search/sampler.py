"""Optuna samplers over the finite list of settings: they choose the next setting.

They read only the Optuna study: states, values (speed-ups over eager) and the user attribute
``seconds`` of its trials. They work with plain ``study.optimize``.
"""

from __future__ import annotations

import functools
import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
_LOOK = 0.05  # bonus for what stands for a backend or a family of modes that was not tried yet
_ENOUGH = 0.002  # expected log gain below which the search ends
_ANSWERED_S = 0.01  # seconds of a setting that needs no process
_WORTH = (
    0.01  # expected log gain of an untried setting above which the answer stays open
)
_ONE_IN_TEN = 1.28  # standard deviations above the mean of a normal variable
_NOISE = 0.03  # of one process, as the standard deviation of a log speed-up
# A failure counts as a log speed-up with so much noise: what shares its features comes later, as
# failures of one kind mostly have one cause: frozen weights of one model failed 8 times.
_FAILURE, _FAILURE_NOISE = -0.2, 0.33

LEFT, RUNNING, FAILED, WORKED = range(4)  # what has become of a setting
_STATES = {TrialState.COMPLETE: WORKED, TrialState.PRUNED: FAILED}


class Rest(NamedTuple):
    """A setting that was not tried, and how much faster than the best it may be, as fractions."""

    setting: Setting
    likely: float  # what the model of the search expects
    most: float  # what it exceeds with a chance of one in ten


class Results(NamedTuple):
    """What the trials of a study say of listed settings, as vectors over the list."""

    state: Any  # of the setting's last trial; as if it had none if that was interrupted
    values: Any  # log speed-ups, NaN where there is none
    seconds: Any  # that its process took; 0 if it had none


class ListedSampler(BaseSampler):
    """A sampler over a list of settings: all that may be tried, of all phases and batch sizes.

    The user's own batch size of each phase has priority.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        own_sizes: Mapping[str, int | None] | None = None,
    ) -> None:
        self.settings = tuple(settings)
        self.limit_s = (
            math.inf
        )  # of a trial; what is expected to take longer is not begun
        self.baseline_alone = True  # whether nothing may run beside a baseline
        sizes = own_sizes or {}
        self._is_own = np.array(
            [s.batch_size == sizes.get(s.phase, s.batch_size) for s in settings]
        )
        self._is_baseline = self._is_own & [
            s.config == DEFAULT_INDUCTOR for s in settings
        ]
        # Plain torch.compile() of each phase.
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

    def results(self, study: optuna.Study) -> Results:
        """What the study says of listed settings; of two trials of a setting the newer counts."""
        count = len(self.settings)
        state, values, seconds = (
            np.zeros(count, int),
            np.full(count, np.nan),
            np.zeros(count),
        )
        for trial in study.get_trials(deepcopy=False):
            i = self._by_params.get(frozenset(trial.params.items()))
            if i is None or trial.state is TrialState.FAIL:
                continue
            state[i] = _STATES.get(trial.state, RUNNING)
            seconds[i] = trial.user_attrs.get("seconds") or 0.0
            values[i] = (
                math.log(trial.value) if trial.value and trial.value > 0 else np.nan
            )
        return Results(state, values, seconds)

    def rest(self, study: optuna.Study) -> list[Rest]:
        """The untried settings that may be worth their seconds, as far as the sampler knows."""
        return []

    def left(self, study: optuna.Study) -> list[Setting]:
        return [
            self.settings[i] for i in np.flatnonzero(self.results(study).state == LEFT)
        ]

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
    gains: Any  # expected, in log speed-up
    ranks: Any  # the largest comes next

    @property
    def best(self) -> int:
        return int(self.positions[np.argmax(self.ranks)])


class Expected(NamedTuple):
    """What is expected of each setting, as vectors over the list."""

    mean: Any  # of the log speed-up
    deviation: Any  # of the same
    best: Any  # of its phase and batch size, the largest log speed-up

    def gain(self, positions: Any) -> Any:
        return expected_gain(*(each[positions] for each in self))


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
        # A prior's seconds are those of one or two programs.
        self._cost_s = np.array(
            [
                priors[s.phase].cost_s(s.config) * max(1, s.config.programs / 2)
                for s in settings
            ]
        )
        self._weight = np.where(self._is_own, 1.0, _OTHERS)
        self._is_first = np.array(
            [s.config.is_plain_eager for s in settings]
        )  # speed-ups need it
        self._is_eager = np.array([s.config.is_eager for s in settings])
        self._is_look = _plainest_of_families(settings, self._is_own)
        # A setting that its plainer twin answers waits until that has ended.
        twins = [
            self._position.get(t) if (t := s.plainer_twin) else None for s in settings
        ]
        self._has_twin = np.array([twin is not None for twin in twins])
        self._twin = np.array([twin or 0 for twin in twins])

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        scores = self.scores(study)
        if not len(scores.positions):
            raise RuntimeError("every setting has been tried")
        return self._params[scores.best]

    def has_next(self, study: optuna.Study) -> bool:
        """Whether a setting may begin now; the baseline may have to wait for what runs."""
        scores, is_running = self.scores(study), self.results(study).state == RUNNING
        if not len(scores.positions):
            return False
        waits = self.baseline_alone and bool(is_running.any())
        return not (self._is_baseline[scores.best] and waits)

    def is_done(self, study: optuna.Study) -> bool:
        """Whether no setting is left that is expected to gain enough."""
        return bool((self.scores(study).gains < _ENOUGH).all())

    def scores(self, study: optuna.Study) -> Scores:
        """The scores of the settings that may be tried now: expected gain, and that per second."""
        results = self.results(study)
        seconds = self._seconds(results)
        fits = self._is_first | self._is_baseline | (seconds <= self.limit_s)
        at = np.flatnonzero(
            self._may_work(results.state) & ~self._waits(results.state) & fits
        )
        weight = self._weight[at]
        gains = weight * (self._expected(results).gain(at) + _LOOK * self._is_look[at])
        gains += self._is_first[at]
        # Where the time is short, nearly all that fits is the last of its slot.
        least_s = 0.0 if self.baseline_alone else self.limit_s / 2
        # Eager mode begins before all others, and the baseline where others may run beside it.
        first = (
            self._is_first[at]
            + (not self.baseline_alone) * 1e-3 * self._is_baseline[at]
        )
        return Scores(
            at, gains, gains / np.maximum(seconds[at], least_s) + 1e6 * weight * first
        )

    def rest(self, study: optuna.Study) -> list[Rest]:
        """The untried settings that may be worth their seconds, largest expected gain first.

        Of each phase at the user's own batch size, without those that another setting answers.
        """
        results = self.results(study)
        is_open = (
            self._may_work(results.state)
            & self._is_own
            & ~self._has_twin
            & ~self._is_eager
        )
        at, expected = np.flatnonzero(is_open), self._expected(results)
        mean, deviation, best = (each[at] for each in expected)
        gains = expected.gain(at)
        likely, most = (
            np.expm1(mean - best),
            np.expm1(mean + _ONE_IN_TEN * deviation - best),
        )
        return [
            Rest(self.settings[at[i]], float(likely[i]), float(most[i]))
            for i in np.argsort(-gains)
            if gains[i] >= _WORTH
        ]

    def _expected(self, results: Results) -> Expected:
        """By the results so far, and as if each setting that runs had reached its mean."""
        values, noise = results.values.copy(), np.full(len(self.settings), _NOISE)
        failed = (results.state == FAILED) & (results.seconds > 0)
        values[failed], noise[failed] = _FAILURE, _FAILURE_NOISE
        mean, deviation = self._effects.posterior(values, noise)
        running = results.state == RUNNING
        if running.any():
            values[running] = mean[running]
            mean, deviation = self._effects.posterior(values, noise)
        cell, known = self._effects.cell, np.flatnonzero(~np.isnan(values))
        best = np.zeros(len(values))  # eager mode's
        np.maximum.at(best, cell[known], values[known])
        return Expected(mean, deviation, best[cell])

    def _may_work(self, state: Any) -> Any:
        """What is left, but for phases and batch sizes in which eager mode itself fails."""
        cell = self._effects.cell
        return (state == LEFT) & ~np.isin(
            cell, cell[self._is_first & (state == FAILED)]
        )

    def _waits(self, state: Any) -> Any:
        """Which settings another one comes before: a twin that answers it, or the baseline.

        Nothing else is compiled beside or before plain ``torch.compile()`` of each phase, which
        tells what a compile of this model takes, but where others may run beside it.
        """
        waits = self._has_twin & (state[self._twin] < FAILED)
        if self.baseline_alone and (self._is_baseline & (state < FAILED)).any():
            waits |= ~self._is_eager & ~self._is_baseline
            waits |= (self._is_baseline & (state == RUNNING)).any()
        return waits

    def _seconds(self, results: Results) -> Any:
        """What each setting's trial is expected to take.

        The prediction times the ratio of actual to predicted seconds so far. Compiles of a large
        model take many times as long as those of the tables, and its eager trials do not: each kind
        has a ratio of its own.
        """
        expected_s, took = self._cost_s.copy(), results.seconds > 0
        for kind in (self._is_eager, ~self._is_eager):
            if (at := took & kind).any():
                logs = np.log(results.seconds[at] / self._cost_s[at])
                expected_s[kind] *= math.exp(logs.mean())
        expected_s[self._has_twin & (results.state[self._twin] >= FAILED)] = _ANSWERED_S
        return expected_s


def _plainest_of_families(settings: Sequence[Setting], is_own: Any) -> Any:
    """Which settings stand for a family of their phase: those with the fewest features of it."""
    found: dict[tuple[str, str], int] = {}
    order = sorted(
        np.flatnonzero(is_own).tolist(), key=lambda i: len(settings[i].config.features)
    )
    for i in order:
        for family in settings[i].config.families:
            found.setdefault((settings[i].phase, family), i)
    return np.isin(np.arange(len(settings)), [*found.values()])


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
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
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
                proposed[name] = self._inner.sample_independent(
                    study, trial, name, distribution
                )
        self._random.shuffle(left)
        return self.params(
            min(
                left,
                key=lambda s: sum(v != proposed[n] for n, v in self.params(s).items()),
            )
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
    with warnings.catch_warnings():  # a multivariate TPE is experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        inner = name if isinstance(name, BaseSampler) else _INNER[name](seed=seed)
    return FiniteSampler(settings, inner, seed, own_sizes)
