"""Each setting is in exactly one state: done, running, hopeless, waiting, too long or ready."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from autocompile.search.effects import Prior
from autocompile.search.sampler import (
    PENDING,
    FiniteSampler,
    Left,
    ListedSampler,
    PortfolioSampler,
    State,
)
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig, Setting

optuna.logging.set_verbosity(optuna.logging.WARNING)

MAX = CompileConfig(mode="max-autotune")
FULL = CompileConfig(fullgraph=True)
KINDS = ("portfolio", "random")


def sampler_of(
    kind: str, every: list[Setting], plain_alone: bool = True, **prior: Any
) -> ListedSampler:
    """At the largest batch size of each phase first; compiles take two seconds."""
    sizes: dict[str, int | None] = {}
    for s in every:
        sizes[s.phase] = max(s.batch_size or 0, sizes.get(s.phase) or 0) or None
    priors = {s.phase: Prior(**{"seconds": {"inductor": 2.0}, **prior}) for s in every}
    if kind == "portfolio":
        return PortfolioSampler(every, priors, sizes, plain_alone)
    inner = optuna.samplers.RandomSampler(seed=0)
    return FiniteSampler(every, inner, 0, priors, sizes, plain_alone)


def study_of(
    sampler: ListedSampler, states: Mapping[Setting, TrialState], seconds: float = 4.0
) -> optuna.Study:
    """A study with a trial of each of these settings."""
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for setting, state in states.items():
        trial = optuna.trial.create_trial(
            state=state,
            value=1.1 if state is TrialState.COMPLETE else None,
            params=sampler.params(setting),
            distributions=dict(sampler.distributions),
            user_attrs={"seconds": seconds},
        )
        study.add_trial(trial)
    return study


def begun(sampler: ListedSampler, study: optuna.Study, left_s: float) -> list[Setting]:
    """What may begin."""
    return [
        sampler.settings[i] for i in sampler.candidates(study, Left(left_s, left_s))
    ]


def tried_to_the_end(
    sampler: ListedSampler, failing: set[Setting], left_s: float = 1e6
) -> list[Setting]:
    """What a search tries, one after the other, where some settings fail."""
    study, tried = optuna.create_study(sampler=sampler), []
    while may_be := sampler.candidates(study, Left(left_s, left_s)):
        study.enqueue_trial({}, user_attrs={"may_be": may_be})
        trial = study.ask(dict(sampler.distributions))
        tried.append(sampler.setting(trial.params))
        trial.set_user_attr("seconds", 4.0)
        has_failed = tried[-1] in failing
        state = TrialState.PRUNED if has_failed else TrialState.COMPLETE
        study.tell(trial, None if has_failed else 1.1, state=state)
    return tried


# Where eager mode fails ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_where_eager_fails_in_one_phase_the_other_is_searched_to_its_end(
    kind: str,
) -> None:
    configs = (EAGER, DEFAULT_INDUCTOR, MAX)
    forward = [Setting(c, 4) for c in configs]
    step = [Setting(c, None, "optimizer_step") for c in configs]
    sampler = sampler_of(kind, forward + step)
    tried = tried_to_the_end(sampler, failing={step[0]})
    assert {*tried} == {*forward, step[0]}


@pytest.mark.parametrize("kind", KINDS)
def test_where_eager_fails_at_the_size_that_comes_first_the_others_are_searched(
    kind: str,
) -> None:
    every = [Setting(c, n) for n in (1, 1024) for c in (EAGER, DEFAULT_INDUCTOR, MAX)]
    tried = tried_to_the_end(sampler_of(kind, every), failing={Setting(EAGER, 1024)})
    assert {*tried} == {*every[:3], Setting(EAGER, 1024)}


@pytest.mark.parametrize("kind", KINDS)
def test_where_eager_fails_under_one_interpreter_the_settings_of_the_other_are_tried(
    kind: str,
) -> None:
    configs = (EAGER, DEFAULT_INDUCTOR, MAX)
    ours = [Setting(c, 4) for c in configs]
    theirs = [Setting(dataclasses.replace(c, environment="old"), 4) for c in configs]
    tried = tried_to_the_end(sampler_of(kind, ours + theirs), failing={theirs[0]})
    assert {*tried} == {*ours, theirs[0]}


# Where the time is short --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_moment_in_which_nothing_fits_says_nothing_of_what_is_worth_trying(
    kind: str,
) -> None:
    every = [Setting(c, 4) for c in (EAGER, DEFAULT_INDUCTOR, MAX)]
    sampler = sampler_of(kind, every)
    study = study_of(sampler, dict.fromkeys(every[:2], TrialState.COMPLETE))
    assert not begun(sampler, study, 1.0)
    assert not sampler.is_done(study) and sampler.left(study) == [every[2]]
    assert begun(sampler, study, 100.0) == [every[2]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_sampler_leaves_out_what_would_not_end_in_time(kind: str) -> None:
    long = CompileConfig("onnxrt")
    every = [Setting(c, 4) for c in (EAGER, DEFAULT_INDUCTOR, long)]
    sampler = sampler_of(kind, every, seconds={"inductor": 2.0, "onnxrt": 500.0})
    study = study_of(sampler, dict.fromkeys(every[:2], TrialState.COMPLETE))
    assert not begun(sampler, study, 60.0)
    assert begun(sampler, study, 5000.0) == [every[2]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_sampler_compiles_plainly_first_and_beside_nothing(kind: str) -> None:
    last = CompileConfig("eager", memory_format="channels_last")
    every = [Setting(c, 4) for c in (EAGER, MAX, last, DEFAULT_INDUCTOR)]
    sampler = sampler_of(kind, every)
    plain, eager = every[3], every[0]
    study = study_of(sampler, {eager: TrialState.RUNNING})
    assert plain not in begun(sampler, study, 1e6), "eager still runs"
    done = {eager: TrialState.COMPLETE, last: TrialState.COMPLETE}
    known = {s: done[s.config] for s in every if s.config in done} | {
        eager: TrialState.COMPLETE
    }
    study = study_of(sampler, known)
    assert begun(sampler, study, 1e6) == [plain]
    study = study_of(sampler, known | {plain: TrialState.RUNNING})
    assert not begun(sampler, study, 1e6)


# What is left -------------------------------------------------------------------------------------


def test_a_sampler_that_has_no_model_cannot_say_what_may_be_faster() -> None:
    every = [Setting(c, 4) for c in (EAGER, DEFAULT_INDUCTOR, MAX)]
    done = dict.fromkeys(every, TrialState.COMPLETE)
    for kind, rest in (("portfolio", []), ("random", None)):
        sampler = sampler_of(kind, every)
        assert sampler.rest(study_of(sampler, done)) == rest


@pytest.mark.parametrize("kind", KINDS)
def test_families_that_were_not_looked_at_are_named_and_a_failure_is_a_look(
    kind: str,
) -> None:
    configs = (EAGER, DEFAULT_INDUCTOR, FULL, MAX, CompileConfig("onnxrt"))
    every = [Setting(c, n) for n in (4, 16) for c in configs]
    sampler = sampler_of(kind, every)
    labels = ["plain torch.compile()", "onnxrt", "inductor max-autotune"]
    assert sampler.unseen(study_of(sampler, {})) == {"forward": labels}
    elsewhere = dict.fromkeys(every[:5], TrialState.COMPLETE)
    assert sampler.unseen(study_of(sampler, elsewhere)) == {"forward": labels}, (
        "at a batch size that the answer is not about"
    )
    looked = {
        Setting(EAGER, 16): TrialState.COMPLETE,
        Setting(DEFAULT_INDUCTOR, 16): TrialState.COMPLETE,
        Setting(CompileConfig("onnxrt"), 16): TrialState.PRUNED,
        Setting(MAX, 16): TrialState.FAIL,  # interrupted
    }
    assert sampler.unseen(study_of(sampler, looked)) == {"forward": labels[2:]}
    no_eager = {Setting(EAGER, 16): TrialState.PRUNED}
    assert sampler.unseen(study_of(sampler, no_eager)) == {"forward": []}


# All of it ----------------------------------------------------------------------------------------

CONFIGS = (
    EAGER,
    CompileConfig("eager", memory_format="channels_last"),
    DEFAULT_INDUCTOR,
    FULL,
    MAX,
    dataclasses.replace(MAX, fullgraph=True),
    CompileConfig("onnxrt"),
)
GROUNDS = tuple(
    itertools.product(("forward", "train_step"), (1, 8), ("default", "old"))
)


def a_space(random_: random.Random) -> list[Setting]:
    """Some settings of some phases, sizes and interpreters; some have no eager mode."""
    every = []
    for phase, size, environment in random_.sample(GROUNDS, random_.randint(1, 4)):
        configs = random_.sample(CONFIGS, random_.randint(1, len(CONFIGS)))
        every += [
            Setting(dataclasses.replace(c, environment=environment), size, phase)
            for c in configs
        ]
    random_.shuffle(every)
    return every


def a_history(
    random_: random.Random, every: list[Setting]
) -> dict[Setting, TrialState]:
    ends = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING, TrialState.FAIL)
    some = random_.sample(every, random_.randint(0, len(every)))
    weights = random_.choice([(4, 2, 1, 1), (1, 4, 0, 0), (2, 1, 0, 1), (1, 1, 4, 0)])
    return {s: random_.choices(ends, weights)[0] for s in some}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(120))
def test_whatever_has_happened_each_setting_has_one_state_and_nothing_waits_for_ever(
    kind: str, seed: int
) -> None:
    random_ = random.Random(seed)
    every = a_space(random_)
    sampler = sampler_of(kind, every, plain_alone=random_.random() < 0.7)
    history = a_history(random_, every)
    left_s = random_.choice([-1.0, 0.0, 3.0, 6.0, 1e6, math.inf])
    study = study_of(sampler, history)
    state = [
        State(s) for s in sampler.states(sampler.results(study), Left(left_s, left_s))
    ]
    by_setting = dict(zip(every, state, strict=True))
    assert len(by_setting) == len(every)

    def counts(*some: State) -> int:
        return sum(state.count(one) for one in some)

    for setting, is_in in by_setting.items():
        told = history.get(setting)
        assert (is_in is State.DONE) == (
            told in (TrialState.COMPLETE, TrialState.PRUNED)
        )
        assert (is_in is State.RUNNING) == (told is TrialState.RUNNING)
        eager = dataclasses.replace(
            setting,
            config=dataclasses.replace(EAGER, environment=setting.config.environment),
        )
        has_no_eager = history.get(eager) is TrialState.PRUNED
        if is_in in (*PENDING, State.HOPELESS):
            assert (is_in is State.HOPELESS) == has_no_eager
    if not counts(State.RUNNING, State.READY, State.TOO_LONG):
        assert counts(State.DONE, State.HOPELESS) == len(every)
    may_be = begun(sampler, study, left_s)
    assert all(by_setting[s] is State.READY for s in may_be)
    if left_s == math.inf and counts(State.READY) and not counts(State.RUNNING):
        assert may_be, "without a limit of time all that is ready has its turn"
    if left_s <= 0:
        assert not counts(State.READY)
    left = {s for s, is_in in by_setting.items() if is_in in PENDING}
    assert {*sampler.left(study)} == left, "what is left never depends on the time"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(40))
def test_without_a_limit_a_search_ends_with_every_setting_done_or_hopeless(
    kind: str, seed: int
) -> None:
    random_ = random.Random(seed)
    every = a_space(random_)
    sampler = sampler_of(kind, every, plain_alone=random_.random() < 0.7)
    failing = {*random_.sample(every, random_.randint(0, len(every)))}
    tried = tried_to_the_end(sampler, failing, math.inf)
    assert len({*tried}) == len(tried)
    done = {
        s: TrialState.PRUNED if s in failing else TrialState.COMPLETE for s in tried
    }
    results = sampler.results(study_of(sampler, done))
    state = sampler.states(results)
    assert np.isin(state, (State.DONE, State.HOPELESS)).all() and len(state)


# What a trial takes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "of_plain_s", "of_cheap_s"),
    [("cudagraphs", 62.0, 50.0), ("inductor", 50.0, 5.0 * 50 / 62)],
)
def test_what_compiles_little_says_nothing_about_what_compiles_much(
    ended: str, of_plain_s: float, of_cheap_s: float
) -> None:
    """A minute of compiling and three seconds of it are expected, beside two of a trial."""
    cheap = Setting(CompileConfig("cudagraphs"), None, "forward")
    plain = Setting(DEFAULT_INDUCTOR, None, "forward")
    every = [Setting(EAGER, None, "forward"), plain, cheap]
    seconds = {"inductor": 60.0, "cudagraphs": 3.0}
    sampler = sampler_of("portfolio", every, plain_alone=False, seconds=seconds)
    one = cheap if ended == "cudagraphs" else plain
    study = study_of(sampler, {one: TrialState.COMPLETE}, seconds=50.0)
    found = sampler.expected_s(sampler.results(study))
    assert found[1:].tolist() == pytest.approx([of_plain_s, of_cheap_s])
