"""Optuna samplers over the finite list of settings: they choose the next setting.

They read only the Optuna study: states, values (speed-ups over eager) and the user attribute
``seconds`` of its trials. They work with plain ``study.optimize``.

Each setting has exactly one :class:`State`, which :meth:`ListedSampler.states` computes from the
results of the study and the seconds that are left. Which setting comes next, what is left and when
a search is over follow from the states.
"""

from __future__ import annotations

import enum
import functools
import math
import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from autocompile.estimate.decision import ZONE
from autocompile.search.effects import Effects, Prior, expected_gain
from autocompile.settings.config import DEFAULT_INDUCTOR, Setting, choices

_INNER: Mapping[str, Callable[..., BaseSampler]] = {
    "tpe": functools.partial(optuna.samplers.TPESampler, multivariate=True),
    "random": optuna.samplers.RandomSampler,
}
MAY_BE = "may_be"
"""User attribute of a trial that is asked for: positions of the settings that it may be of."""

# A gain at the batch size that the answer is about counts twice as much as one at another.
_OTHERS = 0.5
# Bonus, as a log gain, of what stands for a backend or a family of modes that was not tried yet:
# about a tenth of what the tables expect of the best family.
_LOOK = 0.05
# Expected log gain below which a setting is not worth its seconds where these are limited: a
# tenth of the zone in which settings count as equal (estimate/decision.py).
_ENOUGH = 0.002
# Expected log gain of an untried setting from which on the answer stays open: a report calls
# settings that differ by less equal.
_WORTH = 0.01
_ANSWERED_S = 0.01  # seconds of a setting that needs no process
_ONE_IN_TEN = 1.28  # standard deviations above the mean of a normal variable
# Times as long as expected: races wait no longer for what promises more than they do, and nothing
# waits for what takes longer still, which may never end.
_LATE, _VERY_LATE = 1.5, 2.0
# A trial tells how long those of its backend take, and others that are expected to take up to so
# many times as long.
_TELLS = 4.0
_NOISE = 0.03  # of one process, as the standard deviation of a log speed-up
# A failure counts as a log speed-up with so much noise: what shares its features comes later, as
# failures of one kind mostly have one cause: frozen weights of one model failed 8 times.
_FAILURE, _FAILURE_NOISE = -0.2, 0.33
AT_LEAST = 2
"""Compiled settings of each phase that are tried before anything else: one of them says little."""


class State(enum.IntEnum):
    """What can be said of a setting; it is in exactly one of these states."""

    READY = 0  # may begin now
    TOO_LONG = 1  # would not end in the seconds that are left
    WAITING = 2  # for plain torch.compile(), for a twin, or for the machine to be free
    HOPELESS = 3  # eager mode, to which it would be compared, has failed
    RUNNING = 4
    DONE = 5  # has a result, which may be a failure


PENDING = (State.READY, State.TOO_LONG, State.WAITING)
"""The states of a setting that may still be tried."""


class Rest(NamedTuple):
    """A setting that was not tried, and how much faster than the best it may be, as fractions."""

    setting: Setting
    likely: float  # what the model of the search expects
    most: float  # what it exceeds with a chance of one in ten


class Left(NamedTuple):
    """Seconds that a trial may take which begins now."""

    usual: float = math.inf
    compared: float = math.inf  # one of those that are compared first

    @property
    def is_limited(self) -> bool:
        return math.isfinite(self.usual)


UNLIMITED = Left()


class Results(NamedTuple):
    """What the trials of a study say of listed settings, as vectors over the list."""

    running: Any
    worked: Any
    failed: Any
    values: Any  # log speed-ups, NaN where there is none
    seconds: Any  # that its process took; 0 if it had none

    @property
    def done(self) -> Any:
        return self.worked | self.failed


class ListedSampler(BaseSampler):
    """A sampler over a list of settings: all that may be tried, of all phases and batch sizes.

    Args:
        settings: the list.
        priors: of each phase, from recorded tables: what a trial costs and gains.
        own_sizes: by phase, the batch size that the answer is about, which has priority.
        plain_alone: whether plain ``torch.compile()`` of each phase runs before and beside nothing
            else that compiles. It is then compiled as a user's program does it, and tells what a
            compile of this model takes. Nothing begins beside eager mode then, either.
        compared: compiled settings of each phase that are tried first, plain ``torch.compile()``
            and those of which most is expected.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        priors: Mapping[str, Prior] | None = None,
        own_sizes: Mapping[str, int | None] | None = None,
        plain_alone: bool = True,
        compared: int = AT_LEAST,
    ) -> None:
        self.settings = tuple(settings)
        self.plain_alone = plain_alone
        self.compared = compared
        sizes = own_sizes or {}
        self.priors = {s.phase: (priors or {}).get(s.phase, Prior()) for s in settings}
        # Without parameters that have only one value.
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values)
            for name, values in choices(settings).items()
            if len(values) > 1 or name == "backend"
        }
        every = [s.params() for s in self.settings]
        self._params = [{n: p[n] for n in self.distributions} for p in every]
        self._by_params = {frozenset(p.items()): i for i, p in enumerate(self._params)}
        self._position = {s: i for i, s in enumerate(self.settings)}
        # What the states depend on, as vectors over the list.
        self._is_own = np.array(
            [s.batch_size == sizes.get(s.phase, s.batch_size) for s in settings]
        )
        self._phase = np.array([s.phase for s in settings])
        self._is_eager = np.array([s.config.is_eager for s in settings])
        self._backend = np.array([s.config.backend for s in settings])
        self._needs_own_process = np.array(
            [s.config.needs_own_process for s in settings]
        )
        self._is_plain_eager = np.array([s.config.is_plain_eager for s in settings])
        self._is_plain_compile = self._is_own & [
            s.config == DEFAULT_INDUCTOR for s in settings
        ]
        # Begins whatever is expected of it: all others are compared to these.
        self._is_yardstick = self._is_plain_eager | self._is_plain_compile
        self._can_compare = (
            self._is_own & ~self._is_eager & [s.plainer_twin is None for s in settings]
        )
        # Eager mode of the same ground is what a setting's speed-up is over.
        grounds = [(*s.cell, s.config.environment) for s in settings]
        codes = {ground: code for code, ground in enumerate(dict.fromkeys(grounds))}
        self._ground = np.array([codes[ground] for ground in grounds])
        # A setting that its plainer twin may answer waits until that has ended.
        twins = [
            self._position.get(t) if (t := s.plainer_twin) else None for s in settings
        ]
        self._has_twin = np.array([twin is not None for twin in twins])
        self._twin = np.array([twin or 0 for twin in twins])
        # A prior's seconds are those of one or two programs.
        self._cost_s = np.array(
            [
                self.priors[s.phase].cost_s(s.config) * max(1, s.config.programs / 2)
                for s in settings
            ]
        )

    @property
    def baselines(self) -> set[Setting]:
        """Plain ``torch.compile()`` of each phase."""
        return {self.settings[i] for i in np.flatnonzero(self._is_plain_compile)}

    @property
    def yardsticks(self) -> set[Setting]:
        """What all others are compared to, at the batch sizes that answers are about."""
        found = np.flatnonzero(self._is_yardstick & self._is_own)
        return {self.settings[i] for i in found}

    def setting(self, params: Mapping[str, Any]) -> Setting:
        """The setting with these parameters; KeyError if it is not in the list."""
        return self.settings[self._by_params[frozenset(params.items())]]

    def params(self, setting: Setting) -> dict[str, Any]:
        return self._params[self._position[setting]]

    # The state of each setting --------------------------------------------------------------------

    def results(self, study: optuna.Study) -> Results:
        """What the study says of listed settings; of two trials of a setting the newer counts.

        An interrupted trial says nothing: its setting is still to be tried.
        """
        count = len(self.settings)
        running, worked, failed = (np.zeros(count, bool) for _ in range(3))
        values, seconds = np.full(count, np.nan), np.zeros(count)
        for trial in study.get_trials(deepcopy=False):
            i = self._by_params.get(frozenset(trial.params.items()))
            if i is None or trial.state is TrialState.FAIL:
                continue
            worked[i] = trial.state is TrialState.COMPLETE
            failed[i] = trial.state is TrialState.PRUNED
            running[i] = not (worked[i] or failed[i])
            seconds[i] = trial.user_attrs.get("seconds") or 0.0
            values[i] = (
                math.log(trial.value) if trial.value and trial.value > 0 else np.nan
            )
        return Results(running, worked, failed, values, seconds)

    def states(self, results: Results, left: Left = UNLIMITED) -> Any:
        """The :class:`State` of each setting, as a vector over the list.

        Args:
            results: what is known of each.
            left: how long a trial may take.
        """
        no_eager = self._ground[self._is_plain_eager & results.failed]
        hopeless = ~results.done & np.isin(self._ground, no_eager)
        # Only for what may still end can others wait: the rules of waiting see nothing else.
        waits = self._waits(~results.done & ~hopeless, results.running)
        expected_s = np.where(self._is_yardstick, 0.0, self.expected_s(results))
        state: Any = np.full(len(self.settings), State.READY)
        state[expected_s >= self._left_s(results, left)] = State.TOO_LONG
        state[waits] = State.WAITING
        state[hopeless] = State.HOPELESS
        state[results.running] = State.RUNNING
        state[results.done] = State.DONE
        return state

    def _left_s(self, results: Results, left: Left) -> Any:
        """How long the trial of each setting may take."""
        if left.usual == left.compared:
            return left.usual
        no_eager = self._ground[self._is_plain_eager & results.failed]
        may_be = ~results.done & ~results.running & ~np.isin(self._ground, no_eager)
        is_compared = self.comparison(results, may_be)
        return np.where(is_compared, left.compared, left.usual)

    def _waits(self, may_end: Any, running: Any) -> Any:
        """Which settings another one comes before, of those that run or may still be tried."""
        waits: Any = self._has_twin & may_end[self._twin]
        if not self.plain_alone:
            return waits
        plain = self._is_plain_compile & may_end
        if plain.any():
            waits |= ~self._is_eager & ~self._is_plain_compile
        # Both have the machine to themselves. What compiles nothing is timed and verified in
        # nearly all of its time, in which whatever runs beside it is stopped: side by side, two
        # of them end as late as the second one would.
        if ((plain | self._is_eager) & running).any():
            waits |= True
        if running.any():  # and begins when it is free
            waits |= plain
        return waits

    def expected_s(self, results: Results) -> Any:
        """Seconds that the trial of each setting is expected to take.

        The prediction times the ratio of actual to predicted seconds so far. Compiles of a large
        model take many times as long as those of the tables, and its eager trials do not: each kind
        has a ratio of its own. A backend that compiles little says nothing about one that does.
        """
        expected_s = self._cost_s.copy()
        for kind in (self._is_eager, ~self._is_eager):
            took = np.flatnonzero((results.seconds > 0) & kind)
            logs = np.log(results.seconds[took] / self._cost_s[took])
            tells = self._cost_s[took] * _TELLS >= self._cost_s[kind, None]
            tells |= self._backend[took] == self._backend[kind, None]
            count = np.maximum(1, tells.sum(axis=1))
            expected_s[kind] *= np.exp((tells * logs).sum(axis=1) / count)
        expected_s[self._has_twin & results.done[self._twin]] = _ANSWERED_S
        return expected_s

    # What follows from the states -----------------------------------------------------------------

    def candidates(self, study: optuna.Study, left: Left = UNLIMITED) -> list[int]:
        """Positions of the settings of which the next trial may be; none where none may begin now.

        With unlimited seconds every setting has its turn, else only what is worth its seconds.
        """
        raise NotImplementedError

    def beside(
        self, study: optuna.Study, setting: Setting, left: Left = UNLIMITED
    ) -> list[int]:
        """Positions of the settings that share the process of eager mode: what compiles nothing."""
        if not setting.config.is_plain_eager or setting.config.needs_own_process:
            return []
        results, first = self.results(study), self._position[setting]
        fits = np.isin(self.states(results), PENDING) & self._is_worth_it(study, left)
        shares = self._is_eager & ~self._is_plain_eager
        shares &= fits & (self._ground == self._ground[first])
        expected_s = self.expected_s(results)
        # Nobody's result is there before all have theirs.
        total_s, found = expected_s[first], list[int]()
        for i in np.flatnonzero(shares):
            total_s += expected_s[i]
            if (
                total_s < left.usual / 2
                and not self.settings[i].config.needs_own_process
            ):
                found.append(int(i))
        return found

    def _is_worth_it(self, study: optuna.Study, left: Left) -> Any:
        """Which settings are worth any time: all, for what cannot tell."""
        return np.ones(len(self.settings), bool)

    def left(self, study: optuna.Study) -> list[Setting]:
        """The settings that may still be tried."""
        state = self.states(self.results(study))
        return [self.settings[i] for i in np.flatnonzero(np.isin(state, PENDING))]

    def comes_before_races(
        self,
        study: optuna.Study,
        left: Left,
        elapsed_s: Mapping[Setting, float],
    ) -> bool:
        """Whether something is expected to tell more than a second set of races.

        It fits the time that is left, or runs and is not late by ``elapsed_s``: of settings that run.
        """
        results = self.results(study)
        is_open = self.states(results, left) == State.READY
        is_open |= results.running & self._is_in_time(results, elapsed_s, 1.0)
        return bool((is_open & (self._behind(results) | self._promises(results))).any())

    def is_awaited(
        self, study: optuna.Study, elapsed_s: Mapping[Setting, float]
    ) -> bool:
        """Whether something runs that is expected to tell more than races, and is not very late."""
        results = self.results(study)
        awaited = self._awaited(results, elapsed_s)
        in_time = self._is_in_time(results, elapsed_s, _VERY_LATE)
        return bool(
            (awaited | (results.running & self._behind(results) & in_time)).any()
        )

    def _awaited(self, results: Results, elapsed_s: Mapping[Setting, float]) -> Any:
        """What runs, is likely to be faster than what is known, and is not late."""
        in_time = self._is_in_time(results, elapsed_s, _LATE)
        return results.running & self._is_likely(results) & in_time

    def _is_in_time(
        self, results: Results, elapsed_s: Mapping[Setting, float], times: float
    ) -> Any:
        """Which of those that run have not taken so many times as long as expected."""
        elapsed = np.array([elapsed_s.get(s, math.inf) for s in self.settings])
        return elapsed < times * self.expected_s(results)

    def _behind(self, results: Results) -> Any:
        """What may be compared first, of the phases of which too little has been compared."""
        ended = self._has_run(results)
        behind = [
            phase
            for phase in self.priors
            if ended[self._of_phase(phase)].sum() < self.compared
        ]
        return self._can_compare & np.isin(self._phase, behind)

    def _promises(self, results: Results) -> Any:
        """What is expected to gain more than what settings are raced for: nothing, by itself."""
        return np.zeros(len(self.settings), bool)

    def _is_likely(self, results: Results) -> Any:
        """What is likely to be faster than all that is known by more than settings are raced for."""
        return np.zeros(len(self.settings), bool)

    def is_done(self, study: optuna.Study) -> bool:
        """Whether nothing that is left is worth any time."""
        return not self.left(study)

    def rest(self, study: optuna.Study) -> list[Rest] | None:
        """The untried settings that may be worth their seconds; None: the sampler cannot say."""
        return None

    def unseen(self, study: optuna.Study) -> dict[str, list[str]]:
        """By phase, the families that could be tried and were not looked at once.

        A family is named by its plainest setting. What was tried and failed was looked at.
        """
        state = self.states(self.results(study))
        looked: dict[str, set[str]] = defaultdict(set)
        for i in np.flatnonzero(self._is_own & (state == State.DONE)):
            looked[self.settings[i].phase] |= self.settings[i].config.families
        found: dict[str, list[str]] = {s.phase: [] for s in self.settings}
        may_work = self._is_own & np.isin(state, (*PENDING, State.RUNNING))
        plainest = plainest_of_families(self.settings, may_work)
        for (phase, family), position in plainest.items():
            label = self.settings[position].config.label()
            if family not in looked[phase] and label not in found[phase]:
                found[phase].append(label)
        return found

    def comparison(self, results: Results, may_be: Any) -> Any:
        """Which of ``may_be`` are to be tried before anything else but eager mode, as a mask.

        Of each phase at the batch size that the answer is about: plain ``torch.compile()``, and
        the settings that promise most, until ``compared`` have run or are running.
        """
        chosen = np.zeros(len(self.settings), bool)
        promise = np.where(self._is_plain_compile, math.inf, self.promise(results))
        for phase, missing in self._missing(results).items():
            waiting = np.flatnonzero(self._of_phase(phase) & may_be)
            best = waiting[np.argsort(-promise[waiting], kind="stable")]
            chosen[best[:missing]] = True
        return chosen

    def _missing(self, results: Results) -> dict[str, int]:
        """By phase, how many compiled settings are still to be begun before anything else."""
        begun = results.running | self._has_run(results)
        return {
            phase: max(0, self.compared - int(begun[self._of_phase(phase)].sum()))
            for phase in self.priors
        }

    def _of_phase(self, phase: str) -> Any:
        return self._can_compare & (self._phase == phase)

    def _has_run(self, results: Results) -> Any:
        """What has ended after a trial of its own."""
        return (results.done & (results.seconds > 0)).astype(bool)

    def promise(self, results: Results) -> Any:
        """What decides which settings are compared first: the largest come first.

        What the tables expect per second.
        """
        mean = np.array([self.priors[s.phase].mean(s.config) for s in self.settings])
        if self.plain_alone:
            return mean / self.expected_s(results)
        return mean / self._beside_plain_s(results)

    def _beside_plain_s(self, results: Results) -> Any:
        """Seconds of each trial, where plain ``torch.compile()`` of its phase runs beside it.

        What ends before that costs nothing.
        """
        expected_s = self.expected_s(results)
        for phase in self.priors:
            here = self._phase == phase
            plain_s = expected_s[here & self._is_plain_compile].max(initial=0.0)
            expected_s[here] = np.maximum(expected_s[here], plain_s)
        return expected_s

    def seconds_to_compare(
        self, study: optuna.Study, elapsed_s: Mapping[Setting, float]
    ) -> float:
        """What trials still take until ``compared`` settings have ended, and what is awaited.

        One after the other, or side by side where nothing runs alone. ``elapsed_s``: of those that
        run.
        """
        if not self.compared:
            return 0.0
        results = self.results(study)
        state = self.states(results)
        first = self._is_own & self._is_plain_eager & (state != State.HOPELESS)
        first |= self.comparison(results, np.isin(state, PENDING))
        first |= self._awaited(results, elapsed_s)
        elapsed = np.array([elapsed_s.get(s, 0.0) for s in self.settings])
        expected_s = self.expected_s(results)
        left_s = np.maximum(0.0, expected_s - elapsed)
        # What is late takes as long again as it is late; without eager mode there is no answer.
        may_be_late = self._is_yardstick | (elapsed < _VERY_LATE * expected_s)
        late_s = np.where(may_be_late, elapsed - expected_s, 0.0)
        left_s = np.maximum(left_s, late_s)
        for phase in self.priors:
            # Of those that run only as many as are missing: others move no end.
            here = self._of_phase(phase)
            missing = self.compared - int(self._has_run(results)[here].sum())
            runs = np.flatnonzero(results.running & here)
            soonest = runs[np.argsort(left_s[runs], kind="stable")]
            first[soonest[: max(0, missing)]] = True
        left_s[~first | results.done] = 0.0
        return float(left_s.sum() if self.plain_alone else left_s.max(initial=0.0))

    # What Optuna asks -----------------------------------------------------------------------------

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters, since they are chosen together."""
        return self.distributions

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The parameters of one of the candidates.

        These are in the trial where a search with limited seconds asks for it. Optuna's own loop
        cannot wait: where nothing may begin it gets what waits.
        """
        may_be = trial.user_attrs.get(MAY_BE) or self.candidates(study)
        may_be = may_be or self._waiting(study)
        if not may_be:
            raise RuntimeError("every setting has been tried")
        return self._params[self.choose(study, trial, may_be)]

    def _waiting(self, study: optuna.Study) -> list[int]:
        """Positions of all that may still be tried, what the others wait for first."""
        is_left = np.isin(self.states(self.results(study)), PENDING)
        order = np.argsort(~self._is_yardstick, kind="stable")
        return [int(i) for i in order if is_left[i]]

    def choose(
        self, study: optuna.Study, trial: FrozenTrial, may_be: Sequence[int]
    ) -> int:
        """The position of the setting to try, out of ``may_be``."""
        return may_be[0]

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # fmt: skip
        """Never called: :meth:`sample_relative` returns all parameters."""
        raise NotImplementedError(param_name)


class Scores(NamedTuple):
    """How much each setting promises, as vectors over the list."""

    gain: Any  # expected, in log speed-up
    rank: Any  # the same per second


class Expected(NamedTuple):
    """What is expected of each setting, as vectors over the list."""

    mean: Any  # of the log speed-up
    deviation: Any  # of the same
    best: Any  # of its phase and batch size, the largest log speed-up

    @property
    def gain(self) -> Any:
        return expected_gain(*self)


class PortfolioSampler(ListedSampler):
    """Looks at each family of settings once, then takes the largest expected gain per second.

    First begin eager mode of each phase, plain ``torch.compile()`` and what is compared to it
    (:meth:`comparison`). Then whatever promises most per second, where the plainest setting of
    each family (:attr:`CompileConfig.families`) has a bonus until it is tried: what a prior expects
    decides when a family has its turn, and never that it has none. Batch sizes that the answer is
    not about come when each family has been looked at; eager mode there comes before the others.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        priors: Mapping[str, Prior] | None = None,
        own_sizes: Mapping[str, int | None] | None = None,
        plain_alone: bool = True,
        compared: int = AT_LEAST,
    ) -> None:
        super().__init__(settings, priors, own_sizes, plain_alone, compared)
        self._effects = Effects(self.settings, self.priors)
        self._weight = np.where(self._is_own, 1.0, _OTHERS)
        looks = {*plainest_of_families(settings, self._is_own).values()}
        self._is_look = np.array([i in looks for i in range(len(settings))])

    def candidates(self, study: optuna.Study, left: Left = UNLIMITED) -> list[int]:
        """The setting that comes next, or none."""
        results = self.results(study)
        state = self.states(results, left)
        # Plain torch.compile() that waits for the machine keeps its place in the line: it would
        # never have its turn if what ranks behind it could begin.
        in_line = (state == State.READY) | (
            self._is_plain_compile & (state == State.WAITING)
        )
        if not in_line.any():
            return []
        scores = self.scores(results, left.usual)
        if left.is_limited:
            promised = self._is_yardstick | self.comparison(results, in_line)
            in_line &= promised | (scores.gain >= _ENOUGH)
        for group, rank in self._in_order(results, in_line, scores):
            if group.any():
                first = int(np.argmax(np.where(group, rank, -math.inf)))
                return [first] if state[first] == State.READY else []
        return []

    def _in_order(
        self, results: Results, in_line: Any, scores: Scores
    ) -> Iterator[tuple[Any, Any]]:
        """Groups of the settings that are in line, and how those of each are ranked.

        What compiles nothing takes seconds, and comes before what does, but for machines on which
        both run side by side: there what takes longest begins first.
        """
        own = in_line & self._is_own
        yield own & self._is_plain_eager, scores.rank
        shares = self._is_eager & ~self._needs_own_process
        uncompiled = own & shares & (scores.gain >= _ENOUGH), scores.rank
        plain_first = np.where(self._is_plain_compile, math.inf, 0.0)
        compared = (
            self.comparison(results, in_line),
            plain_first + self.promise(results),
        )
        yield from (
            (uncompiled, compared) if self.plain_alone else (compared, uncompiled)
        )
        looks = own & self._is_look
        yield own if looks.any() else in_line, self._with_eager_before(scores.rank)
        yield in_line, scores.rank

    def _with_eager_before(self, rank: Any) -> Any:
        """Eager mode of another batch size ranks just before the first setting there."""
        best = np.zeros(len(rank))
        np.maximum.at(best, self._effects.cell, rank)
        before = best[self._effects.cell] * (1 + 1e-9)
        return np.where(self._is_plain_eager, before, rank)

    def promise(self, results: Results) -> Any:
        """By the tables and the results so far, with what a look at a family is worth."""
        if self.plain_alone:
            return self.scores(results).rank
        return self._expected(results).mean / self._beside_plain_s(results)

    def _promises(self, results: Results) -> Any:
        """Looks at families that are expected to gain so much."""
        gain = self._before_it_ran(results).gain
        looks: Any = self._is_own & self._is_look & ~results.done & (gain >= ZONE)
        return looks

    def _is_likely(self, results: Results) -> Any:
        """By the mean of what is expected."""
        expected = self._before_it_ran(results)
        likely: Any = self._is_own & ~results.done
        return likely & (expected.mean - expected.best >= ZONE)

    def _before_it_ran(self, results: Results) -> Expected:
        """What is expected where what runs has not shown what it gains."""
        none = np.zeros(len(self.settings), bool)
        return self._expected(results._replace(running=none))

    def is_done(self, study: optuna.Study) -> bool:
        """Whether no setting is left that is expected to gain enough."""
        results = self.results(study)
        is_left = np.isin(self.states(results), PENDING)
        is_worth_it = self._is_yardstick | (self.scores(results).gain >= _ENOUGH)
        return not (is_left & is_worth_it).any()

    def _is_worth_it(self, study: optuna.Study, left: Left) -> Any:
        """Without a limit every one has its turn."""
        if not left.is_limited:
            return super()._is_worth_it(study, left)
        return self.scores(self.results(study)).gain >= _ENOUGH

    def scores(self, results: Results, left_s: float = math.inf) -> Scores:
        """What each setting is expected to gain, and that per second."""
        gain = self._expected(results).gain + _LOOK * self._is_look
        gain *= self._weight
        seconds = self.expected_s(results)
        # Where others run beside it and the time is short, nearly all that fits is the last of
        # its slot: what is shorter saves nothing.
        if not self.plain_alone and math.isfinite(left_s):
            seconds = np.maximum(seconds, left_s / 2)
        return Scores(gain, gain / seconds)

    def rest(self, study: optuna.Study) -> list[Rest]:
        """The untried settings that may be worth their seconds, largest expected gain first.

        Of each phase at the batch size that the answer is about, without those that another
        setting answers.
        """
        results = self.results(study)
        is_left = np.isin(self.states(results), PENDING)
        expected = self._expected(results)
        gain, above = expected.gain, expected.mean - expected.best
        likely = np.expm1(above)
        most = np.expm1(above + _ONE_IN_TEN * expected.deviation)
        may_win = is_left & self._is_own & ~self._has_twin & ~self._is_eager
        may_win &= (gain >= _WORTH) & (most > 0)
        return [
            Rest(self.settings[i], float(likely[i]), float(most[i]))
            for i in np.argsort(-gain)
            if may_win[i]
        ]

    def _expected(self, results: Results) -> Expected:
        """By the results so far, and as if each setting that runs had reached its mean."""
        values, noise = results.values.copy(), np.full(len(self.settings), _NOISE)
        failed = results.failed & (results.seconds > 0)
        values[failed], noise[failed] = _FAILURE, _FAILURE_NOISE
        mean, deviation = self._effects.posterior(values, noise)
        if results.running.any():
            values[results.running] = mean[results.running]
            mean, deviation = self._effects.posterior(values, noise)
        cell, known = self._effects.cell, np.flatnonzero(~np.isnan(values))
        best = np.zeros(len(values))  # eager mode's
        np.maximum.at(best, cell[known], values[known])
        return Expected(mean, deviation, best[cell])


def plainest_of_families(
    settings: Sequence[Setting], which: Any
) -> dict[tuple[str, str], int]:
    """By phase and family, the position of the setting with the fewest features, out of ``which``."""
    found: dict[tuple[str, str], int] = {}
    order = sorted(
        np.flatnonzero(which).tolist(), key=lambda i: len(settings[i].config.features)
    )
    for i in order:
        for family in settings[i].config.families:
            found.setdefault((settings[i].phase, family), i)
    return found


class FiniteSampler(ListedSampler):
    """Moves each proposal of another sampler to the nearest setting that may begin.

    Optuna's samplers repeat settings and failures in spaces this small. The limits are those of
    every sampler here: the other one only proposes.

    Args:
        inner: proposes the values of all parameters.
        seed: for the choice among equally near settings.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        inner: BaseSampler,
        seed: int,
        priors: Mapping[str, Prior] | None = None,
        own_sizes: Mapping[str, int | None] | None = None,
        plain_alone: bool = True,
        compared: int = AT_LEAST,
    ) -> None:
        super().__init__(settings, priors, own_sizes, plain_alone, compared)
        self._inner, self._random = inner, random.Random(seed)

    def candidates(self, study: optuna.Study, left: Left = UNLIMITED) -> list[int]:
        """All that may begin; eager mode and what is compared before the others."""
        results = self.results(study)
        state = self.states(results, left)
        ready = state == State.READY
        if (first := self._is_plain_eager & ready).any():
            return [int(np.argmax(first))]
        if (self._is_plain_compile & (state == State.WAITING)).any():
            return []  # it is next, as soon as nothing runs
        if (first := self._is_plain_compile & ready).any():
            return [int(np.argmax(first))]
        behind = [phase for phase, missing in self._missing(results).items() if missing]
        first = ready & self._can_compare & np.isin(self._phase, behind)
        return [int(i) for i in np.flatnonzero(first if first.any() else ready)]

    def choose(
        self, study: optuna.Study, trial: FrozenTrial, may_be: Sequence[int]
    ) -> int:
        """The one that differs from the proposal in the fewest parameters."""
        if len(may_be) == 1:
            return may_be[0]
        space = self._inner.infer_relative_search_space(study, trial)
        proposed = dict(self._inner.sample_relative(study, trial, space))
        for name, distribution in self.distributions.items():
            if name not in proposed:
                proposed[name] = self._inner.sample_independent(
                    study, trial, name, distribution
                )
        shuffled = self._random.sample(may_be, len(may_be))

        def distance(i: int) -> int:
            return sum(proposed[n] != value for n, value in self._params[i].items())

        return min(shuffled, key=distance)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

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
    plain_alone: bool = True,
    compared: int = AT_LEAST,
) -> ListedSampler:
    """The sampler of that name, one of ``request.SAMPLERS``, or over any other one of Optuna's kind."""
    if name == "portfolio":
        return PortfolioSampler(settings, priors, own_sizes, plain_alone, compared)
    with warnings.catch_warnings():  # a multivariate TPE is experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        inner = name if isinstance(name, BaseSampler) else _INNER[name](seed=seed)
    return FiniteSampler(
        settings, inner, seed, priors, own_sizes, plain_alone, compared
    )
