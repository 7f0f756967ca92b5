"""The search with scripted trials: order, reuse, failures, second tries, and what wins."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from conftest import Clock
from fakes import FakeExecutor, failed, measured, probed
from scripts import (
    SPACE,
    TRUTH,
    Recorder,
    Timed,
    is_best,
    is_best_raced,
    is_compiled,
    is_eager,
    is_raced,
    script,
    searched,
    speeds,
    target_with,
    tune,
    tuned,
    where,
    with_modes,
)

import autocompile
from autocompile.errors import NothingWorked, RunError, UsageError
from autocompile.estimate.limits import Limits
from autocompile.execute.executor import Ended, Ending, Event, Job
from autocompile.settings.config import CompileConfig
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.record import Outcome


def forward(result: autocompile.Result) -> dict[str, Any]:
    phase: dict[str, Any] = result.to_dict()["phases"]["forward"]
    return phase


def test_the_report_says_why_a_target_was_not_built_for_all_trials(
    target: Path,
) -> None:
    why = "left open: /data"
    probe = dataclasses.replace(probed(), not_built=why)
    for ending, expected in ((probed(), None), (probe, f"by each trial: {why}")):
        result = tuned(
            target,
            FakeExecutor(script, ending),
            run_dir=target.parent / str(bool(expected)),
        )
        assert (result.to_dict()["target"].get("choices") or {}).get(
            "build"
        ) == expected


# Which settings are tried ------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [2, 100])
def test_eager_comes_first_and_each_setting_is_tried_once_side_by_side_too(
    target: Path, slots: int
) -> None:
    def found(executor: FakeExecutor) -> list[Any]:
        result = tuned(
            target, executor, space=SearchSpace(batch_sizes=(1, 4)), effort="full"
        )
        kept = [r for r in result.trials if r.role == "search"]
        return sorted(
            (r.config.label(), r.batch_size or 0, r.duplicate_of is None) for r in kept
        )

    one, many = FakeExecutor(script), FakeExecutor(script, slots=slots)
    assert found(many) == found(one)
    search = searched(one)
    for size in (1, 4):
        assert is_eager(next(r for r in search if r["batch_size"] == size))
    tried = [
        (json.dumps(r["config"], sort_keys=True), r["batch_size"])
        for r in searched(many)
    ]
    assert len(set(tried)) == len(tried) == len(search)


@pytest.mark.parametrize(
    ("memory", "budget_s", "beside_plain", "beside_next"),
    [(None, 60.0, 0, 0), (80e9, 600.0, 1, 2), (80e9, 60.0, 1, 2)],
)
def test_plain_compile_has_company_on_a_gpu_at_every_budget(
    target: Path,
    memory: float | None,
    budget_s: float,
    beside_plain: int,
    beside_next: int,
) -> None:
    environment = {**probed().payload["environment"], "device_memory_bytes": memory}
    executor = Recorder(script, probed(environment=environment), slots=4)
    tuned(target, executor, budget_s=budget_s)
    begun = [
        (
            CompileConfig.from_dict(executor.asked[job.number]["sides"][0]["config"]),
            beside,
        )
        for job, kind, beside in executor.jobs
        if kind == "trial"
    ]
    compiled = [(config, beside) for config, beside in begun if not config.is_eager]
    assert compiled[0] == (CompileConfig(), beside_plain)
    assert compiled[1][1] == beside_next


def convolutions() -> Ending:
    """The probe of a model whose eager mode has another memory format, too."""
    return probed(target=probed().payload["target"] | {"has_convolutions": True})


def test_what_compiles_nothing_shares_a_process_with_eager_mode(target: Path) -> None:
    executor = Recorder(script, convolutions())
    result = tuned(target, executor, space=SearchSpace(batch_sizes=(4,)))
    kinds = {
        number: [CompileConfig.from_dict(side["config"]) for side in asked["sides"]]
        for number, asked in executor.asked.items()
        if asked["kind"] == "trial" and asked["sides"][0]["repeats"] is None
    }
    eager = CompileConfig("eager")
    rows = dataclasses.replace(eager, memory_format="channels_last")
    assert kinds[0] == [eager, rows]
    assert not any(rows in each for number, each in kinds.items() if number)
    first = [r for r in result.trials if r.role == "search" and r.config.is_eager]
    assert [(r.config, r.ok, r.process) for r in first] == [
        (eager, True, 0),
        (rows, True, 0),
    ]
    assert len({r.number for r in result.trials}) == len(result.trials)


def test_what_fails_beside_eager_mode_is_tried_again_by_itself(target: Path) -> None:
    """Its failure may be the other's: it counts where it was alone."""

    def work(request: Mapping[str, Any]) -> Ending:
        is_rows = request["config"]["memory_format"] == "channels_last"
        if is_rows and is_eager(request) and len(request["sides"]) > 1:
            return failed("out_of_memory", "measure")
        return script(request)

    executor = Recorder(work, convolutions())
    result = tuned(target, executor, space=SearchSpace(batch_sizes=(4,)))
    rows = CompileConfig("eager", memory_format="channels_last")
    (record,) = [r for r in result.trials if r.config == rows and r.role == "search"]
    assert record.ok and record.process == record.number
    asked = executor.asked[record.number]["sides"]
    assert [side["config"]["memory_format"] for side in asked] == ["channels_last"]


def test_seconds_of_a_shared_process_are_shared_out(target: Path) -> None:
    """Races are planned by them: each side would have those of all."""

    def work(request: Mapping[str, Any]) -> Ending:
        ending = script(request)
        return dataclasses.replace(ending, wall_s=4.0, step_s={"verify": 3.0})

    class Whole(FakeExecutor):
        def _several(self, request: Mapping[str, Any]) -> Ending:
            steps = {"build": 1.0, "verify": 6.0}
            return dataclasses.replace(super()._several(request), step_s=steps)

    executor = Whole(work, convolutions())
    result = tuned(target, executor, space=SearchSpace(batch_sizes=(4,)))
    eager, rows = [r for r in result.trials if r.role == "search" and r.config.is_eager]
    assert eager.step_s == rows.step_s == {"build": 1.0, "verify": 3.0}
    assert eager.wall_s == rows.wall_s == 4.0


def test_a_trial_that_is_tried_again_by_itself_counts_once(target: Path) -> None:
    def work(request: Mapping[str, Any]) -> Ending:
        if len(request["sides"]) > 1 and "repeats" not in request:
            return failed("out_of_memory", "measure")
        return script(request)

    executor = FakeExecutor(work, convolutions())
    space = SearchSpace(batch_sizes=(4,))
    result = tuned(target, executor, space=space, trials=2)
    tried = [r for r in result.trials if r.role == "search" and r.wall_s]
    assert [r.config.is_plain_eager for r in tried] == [True, False]


def test_a_model_that_fills_the_memory_shares_no_process(target: Path) -> None:
    payload = convolutions().payload
    large = payload["target"] | {"parameters": 2_000_000_000}
    gpu = payload["environment"] | {"device": "cuda", "device_memory_bytes": 80e9}
    executor = Recorder(script, probed(target=large, environment=gpu))
    tuned(target, executor, space=SearchSpace(batch_sizes=(4,)))
    searched_by = [
        asked["sides"]
        for asked in executor.asked.values()
        if asked["kind"] == "trial" and asked["sides"][0]["repeats"] is None
    ]
    assert all(len(sides) == 1 for sides in searched_by)


def test_a_sampler_of_optunas_kind_chooses_in_place_of_ours(target: Path) -> None:
    class Last(optuna.samplers.RandomSampler):
        """Proposes the last choice of each parameter."""

        def sample_independent(
            self, study: Any, trial: Any, name: str, distribution: Any
        ) -> Any:
            return distribution.choices[-1]

    executor = FakeExecutor(script, probed())
    result = tuned(target, executor, sampler=Last(seed=0), trials=3)
    tried = [r.config for r in result.trials if r.role == "search" and r.wall_s > 0]
    assert tried[0].is_eager and tried[1] == CompileConfig()
    assert tried[2].mode == "max-autotune"
    assert (
        "sampler"
        not in json.loads(Path(result.run_dir, "run.json").read_text())["request"]
    )


def test_trials_and_time_are_budgets(target: Path) -> None:
    executor = FakeExecutor(script)
    phase = forward(tune(target, executor=executor, trials=4, run_dir="few"))
    assert len(searched(executor)) == 4
    assert phase["tried"] < phase["listed"]
    late = Timed(script, Clock(), dataclasses.replace(probed(), wall_s=9.45))
    nothing = tune(
        target,
        executor=late,
        budget_s=10.0,
        clock=late.clock.monotonic,
        run_dir="none",
    )
    assert late.requests == []
    answer = nothing.report.phases["forward"].answer
    assert (answer.verdict, nothing.has_answer) == ("unknown", False)
    assert "--resume" in answer.command


def test_a_resumed_run_starts_as_many_more_trials_as_it_is_given(target: Path) -> None:
    first = FakeExecutor(script)
    tune(target, executor=first, trials=4, run_dir="few")
    second = FakeExecutor(script)
    tuned(target, second, space=None, trials=3, run_dir="few", resume=True)
    assert (len(searched(first)), len(searched(second))) == (4, 3)
    numbers = [r["number"] for r in (*searched(first), *searched(second))]
    assert len(set(numbers)) == 7


def test_a_fixed_batch_and_the_targets_own_batch_size_are_used(target: Path) -> None:
    executor = FakeExecutor(script, target_with(fixed_batch_size=7))
    tune(target, executor=executor, trials=4)
    assert {r["batch_size"] for r in executor.requests} == {7}
    tuned(target, executor, space=SearchSpace(batch_sizes=(7,)), trials=4)
    with pytest.raises(UsageError, match=r"inputs of .* have batch size 7"):
        tuned(
            target, executor, space=SearchSpace(batch_sizes=(1, 7)), run_dir="refused"
        )
    assert not Path("refused").exists()
    executor = FakeExecutor(script, target_with(own_batch_size={"forward": 32}))
    tune(target, executor=executor, trials=8)
    assert {r["batch_size"] for r in executor.requests} == {1, 4, 16, 32}


def test_a_space_that_cannot_be_is_refused_and_leaves_no_run(target: Path) -> None:
    for space in (SearchSpace(backends=("inducter",)), SearchSpace(modes=("fastest",))):
        with pytest.raises(UsageError, match=r"inducter|fastest"):
            tuned(target, space=space)
    assert not Path("runs").exists()


# What needs no process ---------------------------------------------------------------------------


def test_what_cannot_differ_is_answered_from_the_record(target: Path) -> None:
    spans = (("compile", 1.0, 2.0),)
    executor = FakeExecutor(lambda r: dataclasses.replace(script(r), spans=spans))
    space = dataclasses.replace(SPACE, freezing=(False,))
    result = tuned(target, executor, space=space)
    by_number = {r.number: r for r in result.trials}
    twins = [r for r in result.trials if r.duplicate_of is not None]
    assert twins
    for twin in twins:
        source = by_number[twin.duplicate_of or 0]
        assert source.duplicate_of is None
        assert source.measurement == twin.measurement
        assert (source.began, twin.began) == (1.0, None)
        assert source.config.mode == twin.config.mode
        assert twin.config.fullgraph
        assert any("a few microseconds more per call" in note for note in twin.notes)
    assert len(searched(executor)) == 3, "eager and two modes"


def test_a_graph_that_breaks_is_not_compiled_fullgraph_again_and_again(
    target: Path,
) -> None:
    executor = FakeExecutor(speeds(TRUTH, graph_breaks=2))
    result = tuned(target, executor)
    # The plain trial says that it broke: no other has to fail of it.
    assert not any(r["config"]["fullgraph"] for r in executor.requests)
    broken = [r for r in result.trials if r.outcome is Outcome.GRAPH_BREAK]
    assert len(broken) > 1
    assert all(
        r.config.fullgraph and "broke the graph 2 times" in r.message for r in broken
    )


def test_what_a_graph_broke_over_is_said_of_the_settings_that_it_answers(
    target: Path,
) -> None:
    place = {"place": "net.py:3", "code": "print(x)", "reason": "cannot trace print"}
    result = tuned(target, speeds(TRUTH, graph_breaks=2, breaks=[place]))
    broken = [r for r in result.trials if r.outcome is Outcome.GRAPH_BREAK]
    assert broken and all(r.answered for r in broken)
    assert all(
        r.message.endswith("2 times: cannot trace print (net.py:3)") for r in broken
    )


def test_where_a_function_was_skipped_fullgraph_is_tried(target: Path) -> None:
    executor = FakeExecutor(speeds(TRUTH, skipped_frames=1))
    tuned(target, executor, effort="full")
    assert any(r["config"]["fullgraph"] for r in searched(executor))


def test_a_break_under_dynamic_says_nothing_of_static_shapes(target: Path) -> None:
    def breaking(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        if config["fullgraph"] and config["dynamic"]:
            return failed("graph_break", message="Unsupported: data dependent")
        return measured(1.2, graph_breaks=1 if config["dynamic"] else 0)

    space = dataclasses.replace(SPACE, dynamic=(None, True))
    result = tuned(target, where(is_compiled, breaking), space=space, effort="full")
    assert any(r.config.dynamic for r in result.trials)
    for r in result.trials:
        broken = r.outcome is Outcome.GRAPH_BREAK
        assert broken == (r.config.fullgraph and r.config.dynamic is True)


# Constant weights --------------------------------------------------------------------------------

WEIGHTS = SearchSpace(modes=("default",), batch_sizes=(4, 8), fullgraph=(False,))


def frozen(request: Mapping[str, Any], refresh_s: float) -> Ending:
    """Frozen weights make calls of 1 ms twice as fast."""
    if not request["config"]["freezing"]:
        return script(request)
    return measured(
        2.0, refresh_s=refresh_s, calls_per_update=request["calls_per_update"]
    )


@pytest.mark.parametrize(
    ("refresh_s", "calls", "wins"),
    [(0.1, None, True), (0.1, 1000, True), (0.1, 150, False), (0.2, 100, False)],
)
def test_what_new_weights_cost_decides_whether_constant_ones_pay(
    target: Path, refresh_s: float, calls: int | None, wins: bool
) -> None:
    """At 150 calls between updates a call takes 0.5 ms and its share of 0.1 s: more than eager."""
    executor = FakeExecutor(partial(frozen, refresh_s=refresh_s))
    result = tuned(
        target, executor, space=WEIGHTS, calls_per_update=calls, effort="full"
    )
    assert result.config["forward"].freezing is wins


def test_the_smaller_the_batch_the_more_calls_lie_between_two_updates(
    target: Path,
) -> None:
    """Where an update takes so many samples; new weights that cost 0.06 s then pay at batch 4."""
    probe = target_with(samples_per_update={"forward": 1200})
    executor = FakeExecutor(partial(frozen, refresh_s=0.06), probe)
    result = tuned(target, executor, space=WEIGHTS, effort="full")
    calls = {(r["batch_size"], r["calls_per_update"]) for r in executor.requests}
    assert calls == {(4, 300), (8, 150)}
    answers = result.report.phases["forward"].answers
    best = {a.batch_size: a.best.config for a in answers if a.best}
    assert best[4].freezing and not best[8].freezing


def test_an_agents_weights_change_at_times_that_somebody_has_to_say(
    target: Path,
) -> None:
    probe = target_with(phases=["forward_exploration"])
    result = tuned(target, FakeExecutor(partial(frozen, refresh_s=0.1), probe))
    assert result.config["forward_exploration"].mode == "max-autotune"
    notes = result.to_dict()["phases"]["forward_exploration"]["notes"]
    assert any(
        "nobody has said how often they change (--calls-per-update)" in n for n in notes
    )


# Compile times -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked", [{"horizon": 10**9}, {"limits": Limits(compile_s=60.0)}, {}]
)
def test_a_compile_time_that_counts_says_that_others_compiled_beside_it(
    target: Path, asked: dict[str, Any]
) -> None:
    executor = Timed(script, Clock(), slots=4)
    result = tuned(target, executor, effort="full", **asked)
    (plain,) = [
        r for r in result.trials if r.config == CompileConfig() and r.role == "search"
    ]
    assert plain.beside == 0 and not any("compile time" in n for n in plain.notes)
    best = result.best["forward"]
    (found,) = [r for r in result.trials if r.number == best.number]
    assert found.beside and found.compile_threads == 1
    said = [n for n in best.notes if "compile time, which counts here" in n]
    assert len(said) == (1 if asked else 0)
    assert all(f"{found.beside} other trials beside it" in n for n in said)


# Failures and second tries -----------------------------------------------------------------------


def test_optuna_is_told_of_failures_of_times_and_that_eager_is_as_fast_as_eager(
    target: Path,
) -> None:
    def noisy(request: Mapping[str, Any]) -> Ending:
        ending = measured(0.9) if is_eager(request) else script(request)
        crashed = failed("crashed", message="SIGSEGV in compile")
        spans = (("import", 1e9, 1e9 + 1), ("compile", 1e9 + 4, 1e9 + 6.5))
        return dataclasses.replace(crashed if is_best(request) else ending, spans=spans)

    result = tuned(target, noisy)
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{Path(result.run_dir).resolve()}/study.db"
    )
    study = optuna.load_study(study_name="autocompile", storage=storage)
    rows = study.get_trials()
    outcomes = {
        r.user_attrs["outcome"]: r.state
        for r in rows
        if r.user_attrs["outcome"] != "ok"
    }
    assert outcomes == {"crashed": optuna.trial.TrialState.PRUNED}
    ran = [row for row in rows if row.user_attrs.get("seconds")]
    assert {row.datetime_start and row.datetime_start.timestamp() for row in ran} == {
        1e9
    }
    assert {row.duration and row.duration.total_seconds() for row in ran} == {6.5}
    assert [row.value for row in rows if row.user_attrs["setting"] == "eager"] == [1.0]
    best = study.best_trial
    assert (best.params["mode"], best.value) == (
        "default",
        pytest.approx(1.2, rel=0.01),
    )
    assert best.user_attrs["call_ms"] == pytest.approx(1 / 1.2, rel=0.01)
    low, high = map(float, best.user_attrs["interval"].split(" to "))
    assert low < 1.2 < high


def test_a_result_that_makes_no_sense_is_infrastructure(target: Path) -> None:
    nonsense = measured(1.0, measurement={"eager_s": "soon", "compiled_s": [None]})
    result = tuned(target, where(is_best, nonsense))
    outcomes = {
        r.outcome.value for r in result.trials if r.config.mode == "max-autotune"
    }
    assert outcomes == {"infrastructure"}


def doubtful(outcome: str = "timeout", message: str = "slow") -> Ending:
    """A failure that forking may have caused."""
    return dataclasses.replace(failed(outcome, message=message), doubts=("forked",))


def test_what_forking_or_a_neighbour_may_have_caused_is_tried_again_alone(
    target: Path,
) -> None:
    endings = itertools.chain([doubtful()], itertools.repeat(None))
    fragile = where(
        lambda r: is_best(r) and not is_raced(r), lambda r: next(endings) or script(r)
    )
    executor = Recorder(fragile, slots=4)
    result = tuned(target, executor, space=SearchSpace(batch_sizes=(1, 4)))
    (retry,) = executor.fresh
    assert [beside for job, _, beside in executor.jobs if job is retry] == [0]
    assert executor.jobs[-1][0] is not retry, "the search goes on"
    record = next(r for r in result.trials if r.number == retry.number)
    assert record.ok
    assert "second try, alone" in record.notes[0]
    assert "timeout in compile (slow)" in record.notes[0]


@pytest.mark.parametrize(
    ("first", "tries"),
    [(doubtful("crashed"), [False, True]), (failed("timeout"), [False])],
)
def test_only_what_the_setting_itself_may_not_have_caused_is_tried_again(
    target: Path, first: Ending, tries: list[bool]
) -> None:
    executor = Recorder(where(is_best, first))
    result = tuned(target, executor)
    lost = [r for r in result.trials if r.outcome is first.outcome and r.wall_s]
    assert lost
    for record in lost:
        assert [
            j.fresh for j, *_ in executor.jobs if j.number == record.number
        ] == tries


class AfterDoubt(Recorder):
    """Does something when a trial has ended that is to be tried again."""

    def __init__(self, do: Callable[[], None], **more: Any) -> None:
        super().__init__(where(is_best, doubtful()), **more)
        self._do: Callable[[], None] | None = do

    def wait(self, timeout_s: float) -> list[Event]:
        events = super().wait(timeout_s)
        if self._do and any(isinstance(e, Ended) and e.ending.doubts for e in events):
            do, self._do = self._do, None
            do()
        return events


def test_ctrl_c_before_a_second_try_loses_neither_the_setting_nor_what_was_seen(
    target: Path, request: pytest.FixtureRequest
) -> None:
    # A test run in the background of a shell would have inherited an ignored SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    space = dataclasses.replace(SPACE, freezing=(False,))
    executor = AfterDoubt(lambda: signal.raise_signal(signal.SIGINT), slots=2)
    result = tuned(target, executor, space=space, run_dir="mine")
    assert result.interrupted
    (stopped,) = [r for r in result.trials if r.outcome is Outcome.INTERRUPTED]
    assert "the first ended with timeout (slow)" in stopped.message
    again = tune(target, executor=FakeExecutor(script), run_dir="mine", resume=True)
    assert again.config["forward"].mode == "max-autotune"


def test_a_second_try_waits_for_no_budget_that_is_spent(target: Path) -> None:
    clock = Clock()
    executor = AfterDoubt(lambda: clock.work(100.5))
    result = tuned(target, executor, budget_s=100.0, clock=clock.monotonic)
    assert not executor.fresh
    assert [r for r in result.trials if r.outcome is Outcome.TIMEOUT and r.wall_s]


def test_a_target_that_cannot_be_forked_is_probed_in_a_fresh_interpreter(
    target: Path,
) -> None:
    class Forking(Recorder):
        def start(self, job: Job) -> None:
            self._probe = probed() if job.fresh else doubtful("crashed")
            super().start(job)

    executor = Forking(script)
    assert tuned(target, executor).verdict["forward"] == "faster"
    assert [job.fresh for job, *_ in executor.jobs[:2]] == [False, True]


@pytest.mark.parametrize(
    ("killed", "times"),
    [(doubtful("infrastructure"), 2), (failed("infrastructure"), 1)],
)
def test_what_ends_repeats_from_outside_does_not_rule_a_setting_out(
    target: Path, killed: Ending, times: int
) -> None:
    endings = itertools.chain([killed] * times, itertools.repeat(None))
    unlucky = where(is_best_raced, lambda r: next(endings) or script(r))
    result = tuned(
        target, unlucky, space=dataclasses.replace(SPACE, backends=("inductor",))
    )
    assert result.config["forward"].mode == "max-autotune"
    assert forward(result)["answer"]["best"]["confirmed_processes"] == 3
    assert next(endings) is None


def test_a_setting_that_fails_when_it_is_repeated_is_called_that(target: Path) -> None:
    result = tuned(
        target, where(lambda r: is_raced(r) and is_compiled(r), failed("crashed"))
    )
    assert result.verdict["forward"] == "keep_eager"
    reason = forward(result)["answer"]["reason"]
    assert reason.startswith(
        "every setting that worked in the search failed when it was raced"
    )
    assert "× crashed" in reason


# What wins ---------------------------------------------------------------------------------------


def test_eager_is_its_own_baseline_and_its_noise_no_speed_up(target: Path) -> None:
    result = tuned(target, lambda r: measured(1.5 if is_eager(r) else 1.005))
    assert result.speedup["forward"].value == 1.0
    best = forward(result)["answer"]["best"]
    assert best["throughput"]["value"] == best["eager_throughput"]["value"]
    assert not result.is_faster_by(1.05, "forward")


@pytest.mark.parametrize(
    ("seen", "truth", "wins"),
    [
        # The search flattered the leader: the runner-up, which is better, gets its turn.
        (measured(1.5), {"default": 1.2, "lite": 1.3, "max-autotune": 1.1}, "lite"),
        # Another process was busy in its one trial, whose interval says nothing.
        (
            measured(1.1, noise=0.5),
            {"default": 1.2, "lite": 1.1, "max-autotune": 1.5},
            None,
        ),
    ],
    ids=["flattered", "disturbed"],
)
def test_what_may_be_better_than_what_was_raced_is_raced_too(
    target: Path, seen: Ending, truth: dict[str, float], wins: str | None
) -> None:
    def script_(request: Mapping[str, Any]) -> Ending:
        is_seen = is_best(request) and not is_raced(request)
        return seen if is_seen else speeds(truth)(request)

    space = dataclasses.replace(SPACE, fullgraph=(False,), freezing=(False,))
    result = tuned(target, with_modes(script_, *truth), space=space, effort="quick")
    assert result.config["forward"].mode == (wins or "max-autotune")


def test_a_lucky_setting_that_nobody_confirmed_is_not_reported(target: Path) -> None:
    """The confirmed leader turns out to differ between processes; the runner-up was never run."""
    again = {
        "max-autotune": itertools.cycle([1.25, 1.35, 0.7]),
        "default": itertools.cycle([1.0, 1.01, 0.99]),
    }
    seen = speeds({"default": 1.10, "max-autotune": 1.30})

    def shaky(request: Mapping[str, Any]) -> Ending:
        if is_eager(request) or not is_raced(request):
            return seen(request)
        return measured(next(again[request["config"]["mode"]]))

    space = dataclasses.replace(SPACE, freezing=(False,))
    assert (
        tuned(target, shaky, space=space, effort="quick").verdict["forward"]
        == "keep_eager"
    )


def test_limits_keep_settings_out(target: Path) -> None:
    heavy = where(is_best, measured(1.5, peak_memory_bytes=10**9))
    light = where(is_compiled, measured(1.2, peak_memory_bytes=10**6))
    result = tuned(
        target,
        lambda r: (heavy if is_best(r) else light)(r),
        limits=Limits(memory_bytes=10**8),
    )
    assert result.config["forward"].mode == "default"


def test_latency_prefers_small_batches_and_throughput_large_ones(target: Path) -> None:
    def sized(request: Mapping[str, Any]) -> Ending:
        eager_s = 1e-3 * (1 + 0.1 * request["batch_size"])
        return measured(1.0 if is_eager(request) else 1.3, eager_s=eager_s)

    space = SearchSpace(batch_sizes=(1, 16), modes=("default",))
    for objective, size in (("latency", 1), ("throughput", 16)):
        result = tuned(target, sized, space=space, objective=objective)
        assert result.best["forward"].batch_size == size


def test_without_eager_there_is_no_verdict(target: Path) -> None:
    with pytest.raises(NothingWorked, match="eager mode itself fails: timeout"):
        tuned(target, where(is_eager, failed("timeout", "eager")))


def test_where_one_phase_has_no_eager_nothing_is_recommended_for_it(
    target: Path,
) -> None:
    def is_lost(request: Mapping[str, Any]) -> bool:
        return is_eager(request) and bool(request["phase"] == "optimizer_step")

    lost = where(is_lost, failed("timeout", "eager"))
    executor = FakeExecutor(lost, target_with(phases=["forward", "optimizer_step"]))
    result = tuned(
        target, executor, space=dataclasses.replace(SPACE, optimizer=("default",))
    )
    assert result.verdict == {"forward": "faster", "optimizer_step": "failed"}
    assert set(result.config) == {"forward"}


def test_nothing_that_works_is_an_error_that_says_why(target: Path) -> None:
    with pytest.raises(NothingWorked, match="SIGSEGV in compile"):
        tuned(target, lambda request: failed("crashed", message="SIGSEGV in compile"))


def test_blocks_that_win_are_compiled_by_the_lines_of_the_export(target: Path) -> None:
    def regional(request: Mapping[str, Any]) -> Ending:
        return measured(2.0 if request["config"]["scope"] == "regional" else 1.0)

    executor = FakeExecutor(regional, target_with(regions={"forward": "2 Linear"}))
    space = dataclasses.replace(SPACE, modes=("default",), scope=("model", "regional"))
    result = tuned(target, executor, space=space, effort="quick")
    assert 'autocompile.apply(model, "tuned.json", "forward"' in result.export("python")


# Limits, caches and the disk ---------------------------------------------------------------------


def test_a_compile_gets_less_time_once_others_of_its_kind_have_been_seen(
    target: Path,
) -> None:
    executor = Recorder(
        lambda r: dataclasses.replace(script(r), step_s={"compile": 2.0})
    )
    space = SearchSpace(batch_sizes=(1, 2, 4, 8, 16))
    tuned(target, executor, space=space, timeout_s=500)
    every = [job for job, *_ in executor.jobs]
    allowed = [j.compile_timeout_s for j in every if j.number >= 0]
    assert allowed[0] == 500
    assert 60 in allowed
    assert all(j.timeout_s == 500 for j in every)
    sides = {n: len(asked["sides"]) for n, asked in executor.asked.items() if n >= 0}
    assert min(sides.values()) == 1 < max(sides.values())
    for j in every[1:]:
        assert j.total_timeout_s == 500 * (2 + sides[j.number]), "each has its turn"


def test_the_caches_of_those_that_cannot_win_are_removed(target: Path) -> None:
    cached: list[int] = []

    def caching(request: Mapping[str, Any]) -> Ending:
        cached.append(len(list(Path("mine/cache").glob("0*"))))
        return measured(1.0 + request["number"] / 100, graph_breaks=1)

    executor = with_modes(caching, "default", *(f"mode-{n}" for n in range(20)))
    space = dataclasses.replace(SPACE, fullgraph=(False,), freezing=(False,))
    tuned(target, executor, space=space, effort="full", run_dir="mine")
    assert len(searched(executor)) > 20
    assert max(cached) <= 9 + 4, "eight and default for each batch size, and what runs"
    assert not Path("mine/cache").exists(), "after the confirmation none is needed"


def test_a_full_disk_is_one_paragraph_before_anything_is_lost(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(".")

    def full(path: Any) -> Any:
        done = len(list(Path("mine/trials").glob("*/result.json")))
        return free._replace(free=free.free if done < 3 else 10 * 2**20)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", full)
        with pytest.raises(RunError, match="only 10 MiB are free"):
            tuned(target, run_dir="mine")
    result = tune(target, executor=FakeExecutor(script), run_dir="mine", resume=True)
    assert result.config["forward"].mode == "max-autotune"


def test_a_cache_that_cannot_be_written_is_one_paragraph(target: Path) -> None:
    def spoil(request: Mapping[str, Any]) -> Ending:
        shutil.rmtree("mine/cache", ignore_errors=True)
        Path("mine/cache").write_text("in the way")
        return script(request)

    with pytest.raises(RunError, match="cannot write the compiler cache"):
        tuned(target, spoil, run_dir="mine")


def test_a_limit_of_a_percentile_of_one_shape_is_refused_in_words(
    target: Path,
) -> None:
    executor = FakeExecutor(script)
    with pytest.raises(
        UsageError, match="--max-latency p50 needs calls of several shapes"
    ) as error:
        tuned(target, executor, limits=Limits(percentiles={"p50": 1}))
    assert "get_calls()" in str(error.value) and not executor.requests
