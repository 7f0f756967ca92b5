"""The order in which settings are tried: a sampler that reads nothing but the Optuna study."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from autocompile.request import SAMPLERS
from autocompile.search.effects import Effects, Prior, expected_gain, prior_of
from autocompile.search.sampler import (
    FiniteSampler,
    Left,
    ListedSampler,
    PortfolioSampler,
    State,
    make_sampler,
)
from autocompile.settings.config import EAGER, CompileConfig, Setting

A, B = "reduce-overhead", "max-autotune"
LAST = {"memory_format": "channels_last"}
FUSED = dataclasses.replace(EAGER, optimizer="fused")

optuna.logging.set_verbosity(optuna.logging.WARNING)


def settings(sizes: tuple[int, ...] = (1, 4)) -> list[Setting]:
    configs = [EAGER, CompileConfig("eager", **LAST)]
    configs += [
        CompileConfig(mode=m, **f) for m in ("default", A, B) for f in ({}, LAST)
    ]
    return [Setting(config, size) for size in sizes for config in configs]


def optimized(
    sampler: PortfolioSampler | FiniteSampler,
    truth: Callable[[Setting], float],
    count: int,
) -> list[Setting]:
    """The settings that plain ``study.optimize`` tries, in order, on a recorded table."""
    tried: list[Setting] = []

    def objective(trial: optuna.Trial) -> float:
        params = {
            name: trial.suggest_categorical(name, distribution.choices)
            for name, distribution in sampler.distributions.items()
        }
        tried.append(sampler.setting(params))
        trial.set_user_attr("seconds", 5.0)
        return truth(tried[-1])

    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.optimize(objective, n_trials=count)
    return tried


def told(
    sampler: PortfolioSampler | FiniteSampler,
    *ended: tuple[Setting, float | None, Mapping[str, Any]],
) -> optuna.Study:
    """A study in which these settings have ended; None is a failure."""
    study = optuna.create_study(sampler=sampler, direction="maximize")
    for setting, value, attributes in ended:
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.PRUNED if value is None else TrialState.COMPLETE,
                value=value,
                params=sampler.params(setting),
                distributions=dict(sampler.distributions),
                user_attrs=dict(attributes),
            )
        )
    return study


def gains_of(sampler: PortfolioSampler, study: optuna.Study) -> dict[Setting, float]:
    results = sampler.results(study)
    is_ready = sampler.states(results) == State.READY
    gain = sampler.scores(results).gain
    return {sampler.settings[i]: gain[i] for i in np.flatnonzero(is_ready)}


def following(sampler: PortfolioSampler, study: optuna.Study) -> Setting:
    trial = study.ask(dict(sampler.distributions))
    return sampler.setting(trial.params)


def may_begin(
    sampler: ListedSampler, study: optuna.Study, left_s: float = math.inf
) -> list[CompileConfig]:
    """The configs of the settings of which the next trial may be."""
    return [
        sampler.settings[i].config
        for i in sampler.candidates(study, Left(left_s, left_s))
    ]


@pytest.mark.parametrize("name", SAMPLERS)
def test_under_plain_optimize_each_setting_is_tried_once_eager_of_its_cell_first(
    name: str,
) -> None:
    every = settings()
    sampler = make_sampler(name, every, {}, {}, seed=0)
    tried = optimized(sampler, lambda s: 1.0 if s.config.is_eager else 1.2, len(every))
    assert sorted(map(str, tried)) == sorted(map(str, every))
    for size in (1, 4):
        assert next(s for s in tried if s.batch_size == size).config == EAGER


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_needs_neither_torch_nor_a_package_that_is_not_declared(
    name: str,
) -> None:
    code = (
        "import sys; sys.modules |= {'torch': None, 'scipy': None}\n"
        "import test_sampler as own\n"
        "sampler = own.make_sampler(sys.argv[1], own.settings(), {}, {}, seed=0)\n"
        "print(len(own.optimized(sampler, lambda setting: 1.0, 16)))\n"
    )
    command = [sys.executable, "-c", code, name]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert done.stdout == "16\n", done.stderr


def test_what_tables_know_to_be_fast_comes_first_and_the_users_own_batch_size_before_others() -> (
    None
):
    prior = Prior({"inductor": 0.1, "inductor max_autotune=True": 0.6}, {})
    sampler = PortfolioSampler(settings(), {"forward": prior}, {"forward": 4})
    tried = optimized(sampler, lambda s: 1.0, 4)
    own = [s for s in tried if s.batch_size == 4]
    eager = [s for s in own if s.config.is_eager]
    assert own[0] == Setting(EAGER, 4)
    assert own[len(eager) :][0] == Setting(CompileConfig(), 4)
    assert own[-1].config.mode == B
    assert own == tried


def test_other_batch_sizes_wait_until_each_family_was_looked_at() -> None:
    """Eager mode there, too: it is no answer by itself."""
    sampler = PortfolioSampler(settings(), {}, {"forward": 4})
    tried = optimized(sampler, lambda s: 1.0, len(sampler.settings))
    first = next(i for i, s in enumerate(tried) if s.batch_size == 1)
    looked = {f for s in tried[:first] for f in s.config.families}
    assert looked == {f for s in sampler.settings for f in s.config.families}
    assert tried[first].config == EAGER


def test_plain_compile_is_the_first_that_compiles_and_nothing_compiles_beside_it() -> (
    None
):
    prior = Prior({"inductor max_autotune=True": 0.6}, {})
    sampler = PortfolioSampler(settings(), {"forward": prior}, {"forward": 4})
    eager = [s for s in sampler.settings if s.config.is_eager]
    own = next(s for s in eager if s.batch_size == 4 and s.config == EAGER)
    study = told(sampler, *((s, 1.0, {}) for s in eager if s is not own))
    trial = study.ask(dict(sampler.distributions))
    assert sampler.setting(trial.params) == own
    assert not may_begin(sampler, study), "nothing begins beside eager mode"
    study.tell(trial, 1.0)
    trial = study.ask(dict(sampler.distributions))
    assert sampler.setting(trial.params) in sampler.baselines
    assert not may_begin(sampler, study)
    study.tell(trial, 1.1)
    assert following(sampler, study).config.mode == B


def test_beside_the_baseline_runs_what_the_study_allows() -> None:
    prior = Prior({"inductor max_autotune=True": 0.6}, {})
    sampler = PortfolioSampler(
        settings(), {"forward": prior}, {"forward": 4}, plain_alone=False
    )
    study = told(
        sampler, *((s, 1.0, {}) for s in sampler.settings if s.config.is_plain_eager)
    )
    begun = []
    while may_begin(sampler, study):
        trial = study.ask(dict(sampler.distributions))
        begun.append(sampler.setting(trial.params))
    assert begun[0] in sampler.baselines, "the longest begins first"
    assert any(not s.config.is_eager for s in begun[1:])


@pytest.mark.parametrize(
    ("phase", "first"),
    [
        ("forward", CompileConfig(mode=A)),
        ("train_step", CompileConfig(mode=A, optimizer="fused")),
    ],
)
def test_on_a_gpu_what_the_tables_expect_most_of_begins_beside_plain_compile(
    phase: str, first: CompileConfig
) -> None:
    """CUDA graphs of Inductor, and not what would be tuned for as long again."""
    tuned = {"coordinate_descent_tuning": True, "triton.cudagraphs": True}
    compiled = [
        CompileConfig("cudagraphs"),
        *(CompileConfig(mode=m) for m in ("default", A, B)),
        CompileConfig(options=tuned),
    ]
    if phase == "train_step":
        compiled += [dataclasses.replace(c, optimizer="fused") for c in compiled]
        compiled += [dataclasses.replace(c, scope="step") for c in compiled]
    every = [Setting(c, 4, phase) for c in (EAGER, *compiled)]
    prior = {phase: prior_of("cuda", phase, has_convolutions=False, operators=900)}
    sampler = PortfolioSampler(every, prior, {phase: 4}, plain_alone=False)
    study = told(sampler, (every[0], 1.0, {"seconds": 5.0}))
    begun = [following(sampler, study).config for _ in range(2)]
    assert begun == [CompileConfig(), first]


def test_what_eager_mode_says_of_bfloat16_does_not_keep_compiled_code_from_it() -> None:
    """Of a transformer's step on a GPU, where eager mode gains nothing by it."""
    fields = [{}, {"precision": "high"}, {"autocast": "bfloat16"}]
    plain = [
        CompileConfig(optimizer=o, **f) for o in ("default", "fused") for f in fields
    ]
    modes = [dataclasses.replace(c, mode=A) for c in plain]
    steps = [dataclasses.replace(c, scope="step") for c in (*plain, *modes)]
    eagers = [dataclasses.replace(c, backend="eager") for c in plain]
    every = [Setting(c, 32, "train_step") for c in (*eagers, *plain, *modes, *steps)]
    prior = {"train_step": prior_of("cuda", "train_step", has_convolutions=False)}
    sampler = make_sampler("portfolio", every, prior, {"train_step": 32}, seed=0)
    known = {s: 0.98 for s in every if s.config.is_eager} | {every[len(eagers)]: 1.1}
    study = told(sampler, *((s, v, {"seconds": 20.0}) for s, v in known.items()))
    assert following(sampler, study).config == CompileConfig(
        mode=A, optimizer="fused", autocast="bfloat16"
    )


def test_each_family_is_looked_at_whatever_the_prior_says() -> None:
    """The tables expect nothing of a backend, and its compile is cheap."""
    names = ("onnxrt", "openvino_onnx")
    variants = [CompileConfig(), *(CompileConfig(mode=m) for m in (A, B))]
    variants += [
        CompileConfig(n, options=o) for n in names for o in ({}, {"weights": "baked"})
    ]
    variants += [CompileConfig(**LAST), CompileConfig(mode=A, **LAST)]
    every = [Setting(c, 4) for c in (EAGER, *variants)]
    slow = {name: -0.5 for name in names}
    sampler = PortfolioSampler(every, {"forward": Prior(slow, {n: 1.0 for n in names})})
    study = told(sampler)
    tried = []
    while not sampler.is_done(study):
        trial = study.ask(dict(sampler.distributions))
        tried.append(sampler.setting(trial.params).config)
        trial.set_user_attr("seconds", 5.0)
        study.tell(trial, 1.0)
    assert set(tried) >= set(variants[:7])
    assert tried.index(CompileConfig("onnxrt")) < tried.index(CompileConfig(mode=B))


def test_what_cannot_end_in_time_is_not_begun_but_for_the_baseline() -> None:
    seconds = {"inductor": 20.0, "inductor max_autotune=True": 60.0}
    every = [
        Setting(c, 4)
        for c in (EAGER, *(CompileConfig(mode=m) for m in ("default", A, B)))
    ]
    sampler = PortfolioSampler(every, {"forward": Prior({}, seconds, 2.0)})
    study = told(sampler, (every[0], 1.0, {"seconds": 2.0}))
    assert may_begin(sampler, study, 10.0) == [CompileConfig()]
    assert not may_begin(sampler, study, 0.0), "nothing begins after the end"
    study = told(sampler, (every[0], 1.0, {}), (every[1], 1.0, {"seconds": 44.0}))
    assert not may_begin(sampler, study, 10.0)
    (first,) = may_begin(sampler, study, 60.0)
    assert first.mode == A, "a compile of this model takes 44 s"
    known = [(s, 1.0, {"seconds": 44.0}) for s in every[1:3]]
    study = told(sampler, (every[0], 1.0, {}), *known)
    assert not may_begin(sampler, study, 60.0)
    (first,) = may_begin(sampler, study, 600.0)
    assert first.mode == B


def test_what_runs_beside_what_was_promised_moves_no_end() -> None:
    every = [Setting(EAGER, 4)]
    every += [Setting(CompileConfig(mode=m), 4) for m in ("default", A, B)]
    every += [Setting(CompileConfig(mode=m, **LAST), 4) for m in ("default", A, B)]
    sampler = PortfolioSampler(every, {"forward": Prior({}, {"inductor": 50.0})})
    known = [(s, 1.0, {"seconds": 50.0}) for s in every[:3]]
    study = told(sampler, *known)
    assert sampler.seconds_to_compare(study, {}) == 0.0
    begun = {following(sampler, study): 0.0 for _ in range(3)}
    assert sampler.seconds_to_compare(study, begun) == 0.0
    study = told(sampler, *known[:2])
    begun = {following(sampler, study): 0.0 for _ in range(3)}
    one_s = sampler.expected_s(sampler.results(study))[1]
    assert 0 < sampler.seconds_to_compare(study, begun) < 1.5 * one_s


def test_no_more_shares_eager_modes_process_than_the_time_is_for() -> None:
    """The result of eager mode is there only with those of all others."""
    optimizers = ("default", "fused", "capturable", "tensor_lr")
    configs = [dataclasses.replace(EAGER, optimizer=o) for o in optimizers]
    every = [Setting(config, 4, "train_step") for config in configs]
    sampler = PortfolioSampler(every, {"train_step": Prior(base_s=10.0)})
    beside = {
        left_s: len(sampler.beside(told(sampler), every[0], Left(left_s, left_s)))
        for left_s in (30.0, 80.0, 1000.0)
    }
    assert beside == {30.0: 0, 80.0: 2, 1000.0: 3}


def test_races_wait_for_what_is_compared_first_and_for_families_that_promise_more() -> (
    None
):
    every = [
        Setting(c, 4)
        for c in (EAGER, *(CompileConfig(mode=m) for m in ("default", A, B)))
    ]
    eager, plain, graphs, autotuned = every
    seconds = {"inductor": 10.0, "inductor max_autotune=True": 50.0}
    promising = Prior({"inductor max_autotune=True": 0.6}, seconds)
    known = [(eager, 1.0, {}), (plain, 1.2, {"seconds": 12.0})]
    sampler = PortfolioSampler(every, {"forward": promising})
    study = told(sampler, *known)
    assert sampler.comes_before_races(study, Left(30.0, 30.0), {}), (
        "one compiled setting is few"
    )
    assert not sampler.comes_before_races(study, Left(5.0, 5.0), {}), (
        "nothing would end in time"
    )
    study = told(sampler, *known, (graphs, 1.2, {"seconds": 12.0}))
    assert not sampler.comes_before_races(study, Left(30.0, 30.0), {}), (
        "a minute is too long"
    )
    assert sampler.comes_before_races(study, Left(90.0, 90.0), {})
    assert following(sampler, study) == autotuned
    assert sampler.comes_before_races(study, Left(5.0, 5.0), {autotuned: 20.0})
    assert not sampler.comes_before_races(study, Left(5.0, 5.0), {autotuned: 200.0}), (
        "it is late"
    )
    poor = Prior({"inductor max_autotune=True": -0.6}, seconds)
    sampler = PortfolioSampler(every, {"forward": poor})
    study = told(sampler, *known, (graphs, 1.2, {"seconds": 12.0}))
    assert not sampler.comes_before_races(study, Left(90.0, 90.0), {}), (
        "races tell more"
    )


def test_what_was_not_tried_and_may_be_faster_is_named() -> None:
    every = [
        Setting(c, 4)
        for c in (EAGER, *(CompileConfig(mode=m) for m in ("default", A, B)))
    ]
    prior = Prior(
        {"inductor triton.cudagraphs=True": 0.3, "inductor max_autotune=True": -0.8}
    )
    sampler = PortfolioSampler(every, {"forward": prior})
    study = told(sampler, (every[0], 1.0, {}), (every[1], 1.2, {}))
    (rest,) = sampler.rest(study)
    assert rest.setting.config.mode == A
    assert 0.1 < rest.likely < rest.most
    study = told(
        sampler, *((s, v, {}) for s, v in zip(every, (1.0, 1.2, 1.3), strict=False))
    )
    assert not sampler.rest(study)


def test_beside_what_runs_others_like_it_have_little_to_add() -> None:
    prior = Prior({"inductor max_autotune=True": 0.6}, {})
    sampler = PortfolioSampler(settings(), {"forward": prior}, {"forward": 4})
    known = [s for s in sampler.settings if s.config.is_eager]
    known.append(Setting(CompileConfig(), 4))
    study = told(sampler, *((s, 1.0, {}) for s in known))
    side_by_side = [following(sampler, study) for _ in range(2)]
    assert [s.config.mode for s in side_by_side] == [B, A]


def test_what_is_cheap_and_large_comes_before_what_has_to_be_compiled() -> None:
    every = [
        Setting(c, None, "optimizer_step") for c in (EAGER, CompileConfig(), FUSED)
    ]
    prior = prior_of("cpu", "optimizer_step", False)
    sampler = PortfolioSampler(every, {"optimizer_step": prior})
    assert optimized(sampler, lambda s: 1.0, 2) == [every[0], every[2]]


def test_the_best_of_one_batch_size_is_tried_at_the_other_before_what_lost_there() -> (
    None
):
    every = settings()
    sampler = PortfolioSampler(every, {}, {"forward": 4})
    best = Setting(CompileConfig(mode=A, **LAST), 4)
    ended = [
        (s, 2.0 if s == best else 1.05, {"seconds": 5.0})
        for s in every
        if s.batch_size == 4
    ]
    ended.append((Setting(EAGER, 1), 1.0, {"seconds": 2.0}))
    study = told(sampler, *ended)
    assert following(sampler, study) == dataclasses.replace(best, batch_size=1)


def test_the_search_ends_when_nothing_is_left_that_may_gain() -> None:
    every = settings((4,))
    sampler = PortfolioSampler(every)
    study = told(sampler)
    assert not sampler.is_done(study)
    known = [
        s for s in every if s.config.memory_format == "default" or s.config.is_eager
    ]
    ended = [(s, 1.0 if s.config.is_eager else 0.5, {"seconds": 5.0}) for s in known]
    study = told(sampler, *ended)
    assert sampler.left(study)
    assert sampler.is_done(study), "three modes are twice as slow as eager"
    assert not may_begin(sampler, study, 1e6)
    assert may_begin(sampler, study), "full effort goes on to the end of the list"


def test_where_eager_mode_fails_nothing_else_is_tried() -> None:
    every = settings()
    sampler = PortfolioSampler(every)
    study = told(sampler, (Setting(EAGER, 1), None, {}))
    assert {s.batch_size for s in gains_of(sampler, study)} == {4}
    study = told(sampler, (Setting(EAGER, 1), None, {}), (Setting(EAGER, 4), None, {}))
    assert not may_begin(sampler, study) and not sampler.left(study)
    assert sampler.is_done(study) and not sampler.rest(study)


def test_a_setting_that_another_may_answer_waits_for_it_and_then_costs_nothing() -> (
    None
):
    plain, full = CompileConfig(), CompileConfig(fullgraph=True)
    every = [Setting(c, 4) for c in (EAGER, full, plain)]
    sampler = PortfolioSampler(every)
    assert optimized(sampler, lambda s: 1.0, 3) == [every[0], every[2], every[1]]
    study = told(sampler, (every[0], 1.0, {}))
    assert following(sampler, study) == every[2]
    assert not may_begin(sampler, study), "it is running now"


def test_interrupted_settings_are_still_to_be_tried() -> None:
    every = settings((4,))
    sampler = PortfolioSampler(every)
    study = told(sampler)
    first = study.ask(dict(sampler.distributions))
    study.tell(first, state=TrialState.FAIL)
    assert following(sampler, study) == sampler.setting(first.params)


def test_what_failures_of_one_kind_have_in_common_comes_last() -> None:
    """Two modes fail alike with channels_last; the third is tried without it first."""
    every = settings((4,))
    sampler = PortfolioSampler(
        every, {"forward": Prior({"memory_format=channels_last compiled": 0.1})}
    )
    ended = [
        (Setting(EAGER, 4), 1.0, {}),
        (Setting(CompileConfig("eager", **LAST), 4), 1.0, {}),
        *[
            (
                Setting(CompileConfig(mode=m, **LAST), 4),
                None,
                {"seconds": 5.0},
            )
            for m in ("default", A)
        ],
    ]
    plain = (Setting(CompileConfig(), 4), 1.0, {})
    study = told(sampler, plain, *ended)
    order = [following(sampler, study).config for _ in range(3)]
    assert order[-1] == CompileConfig(mode=B, **LAST)
    unfailed = told(sampler, plain, *ended[:2])
    assert following(sampler, unfailed).config.memory_format == "channels_last"


def test_what_no_process_has_tried_says_nothing_of_others() -> None:
    every = settings((4,))
    sampler = PortfolioSampler(every)
    ended = [
        (Setting(EAGER, 4), 1.0, {}),
        (Setting(CompileConfig(**LAST), 4), None, {}),
    ]
    gains, same = (
        gains_of(sampler, told(sampler, *some)).values() for some in (ended, ended[:1])
    )
    assert max(gains) == pytest.approx(max(same))


def test_eager_has_no_features_and_no_uncertainty() -> None:
    assert EAGER.features == frozenset()
    assert CompileConfig(fullgraph=True).features == {"inductor"}
    every = settings((4,))
    none = np.full(len(every), math.nan)
    mean, deviation = Effects(every, {"forward": Prior()}).posterior(
        none, np.full(len(every), 0.03)
    )
    assert mean[0] == 0
    assert deviation[0] < 1e-3


def vector(every: list[Setting], known: Mapping[Setting, float], other: float) -> Any:
    return np.array([known.get(s, other) for s in every])


def test_what_is_measured_moves_what_is_expected_of_its_relatives() -> None:
    every = settings()
    effects = Effects(every, {"forward": Prior()})
    seen = {Setting(CompileConfig(**LAST), 4): math.log(1.5)}
    near = Setting(CompileConfig(mode=A, **LAST), 4)
    elsewhere = dataclasses.replace(near, batch_size=1)
    far = Setting(CompileConfig("eager", **LAST), 4)
    found, _ = effects.posterior(
        vector(every, seen, math.nan), np.full(len(every), 0.03)
    )
    mean = dict(zip(every, found, strict=True))
    assert mean[near] > mean[elsewhere] > 0.1
    assert mean[far] == pytest.approx(0)


def test_a_disastrous_combination_says_little_of_its_parts() -> None:
    every = settings()
    part, whole = (Setting(CompileConfig(mode=A, **f), 4) for f in ({}, LAST))

    def expected(seen: dict[Setting, float]) -> float:
        effects = Effects(every, {"forward": Prior()})
        mean, _ = effects.posterior(
            vector(every, seen, math.nan), np.full(len(every), 0.03)
        )
        return float(mean[every.index(part)])

    assert expected({whole: math.log(0.7)}) < expected({}) - 0.05
    assert expected({whole: math.log(0.01)}) == pytest.approx(expected({}), abs=0.01)


EVERY = [
    Setting(config, size, phase)
    for phase in ("forward", "train_step")
    for size in (1, 4, 16)
    for config in dict.fromkeys(s.config for s in settings())
]
PRIORS = {"forward": Prior({"inductor": 0.2}), "train_step": Prior({"inductor": -0.75})}


def test_the_posterior_is_that_of_a_normal_distribution_with_some_of_its_values_known() -> (
    None
):
    """Conditioned one result at a time, which is another way to the same."""
    random = np.random.default_rng(0)
    effects, count = Effects(EVERY, PRIORS), len(EVERY)
    values, noise = np.full(count, np.nan), random.uniform(0.03, 0.06, count)
    mean, _ = effects.posterior(values, noise)
    covariance = effects._covariance(np.arange(count))
    for i in random.permutation(count)[: count // 2]:
        values[i] = random.normal(0, 0.7)
        error = noise[i] + max(0.0, -0.7 - values[i])
        gain = covariance[i] / (covariance[i, i] + error**2)
        mean = mean + gain * (max(values[i], -0.7) - mean[i])
        covariance = covariance - np.outer(gain, covariance[i])
    found, deviation = effects.posterior(values, noise)
    assert found == pytest.approx(mean, rel=0, abs=1e-9)
    variance = np.maximum(covariance.diagonal(), 1e-8)
    assert np.square(deviation) == pytest.approx(variance, rel=0, abs=1e-9)


def test_a_sampler_that_has_seen_all_trials_chooses_as_one_that_sees_them_for_the_first_time() -> (
    None
):
    """Several run at once; some fail, and some are interrupted."""
    random = np.random.default_rng(0)
    sampler = PortfolioSampler(EVERY, PRIORS)
    study = told(sampler)
    running: list[optuna.Trial] = []
    for step in range(60):
        other = PortfolioSampler(EVERY, PRIORS)
        pairs = zip(
            sampler.scores(sampler.results(study)),
            other.scores(other.results(study)),
            strict=True,
        )
        for ours, theirs in pairs:
            assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-12)
        assert sampler.left(study) == other.left(study)
        if not (may_be := other.candidates(study)):  # the rest waits for the baseline
            study.tell(running.pop(), 1.0)
            continue
        running.append(study.ask(dict(sampler.distributions)))
        assert running[-1].params == sampler.params(other.settings[may_be[0]])
        while len(running) > step % 5:
            trial = running.pop(int(random.integers(len(running))))
            trial.set_user_attr("seconds", float(random.uniform(1, 9)))
            state = TrialState(int(random.choice([1, 1, 1, 2, 3])))
            worked = state is TrialState.COMPLETE
            study.tell(trial, random.uniform(0.3, 3) if worked else None, state=state)
    again = told(sampler)
    assert len(sampler.left(again)) == len(EVERY), "another study has its own trials"


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.PRUNED])
def test_of_two_trials_of_a_setting_the_newer_counts_also_if_the_older_ends_last(
    state: TrialState,
) -> None:
    every = settings()
    sampler = PortfolioSampler(every)
    study = told(sampler)
    for _ in range(2):
        study.enqueue_trial(sampler.params(every[3]))
    trials = [study.ask(dict(sampler.distributions)) for _ in range(2)]
    for number in (1, 0):
        trials[number].set_user_attr("seconds", 5.0 + number)
        worked = state is TrialState.COMPLETE
        study.tell(trials[number], 2.0 + number if worked else None, state=state)
    results = sampler.results(study)
    assert results.seconds[3] == 6.0
    assert np.isnan(results.values[3]) == (state is TrialState.PRUNED)


def test_the_gain_that_is_expected_counts_what_is_worse_as_nothing() -> None:
    gain = expected_gain(np.array([0.0, 1.0, -1.0]), np.full(3, 0.1), np.zeros(3))
    assert gain == pytest.approx([0.1 / math.sqrt(2 * math.pi), 1.0, 0.0], abs=1e-6)


def test_a_kind_that_no_table_has_starts_from_its_device_and_phase_or_from_nothing() -> (
    None
):
    assert prior_of("cpu", "forward_exploration", True) == prior_of(
        "cpu", "forward", True
    )
    assert prior_of("cpu", "forward", True) != prior_of("cpu", "forward", False)
    assert prior_of("xpu", "forward", True) == Prior()


def test_compiling_many_operators_is_expected_to_take_longer_and_eager_mode_not() -> (
    None
):
    usual, large = (
        prior_of("cuda", "train_step", False, operators) for operators in (50, 10_000)
    )
    assert usual == prior_of("cuda", "train_step", False)
    longer = large.cost_s(CompileConfig()) / usual.cost_s(CompileConfig())
    assert 2 < longer < 6
    assert large.cost_s(EAGER) == usual.cost_s(EAGER)
    assert large.effects == usual.effects
