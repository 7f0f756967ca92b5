"""The search with scripted trials: order, duplicates, failures, budgets, resuming, confirming."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import optuna
import pytest
from conftest import Clock

import autocompile
from autocompile.api import load, tune
from autocompile.errors import NothingWorked, RunError, UsageError
from autocompile.execute.executor import Ended, Ending, Event, Job
from autocompile.report.live import SilentProgress
from autocompile.space.space import SearchSpace
from autocompile.store.record import Outcome, RunFolder, Step
from autocompile.testing import FakeExecutor, failed, measured, probed

TRUTH = {"eager": 1.0, "default": 1.2, "max-autotune": 1.5}


def script(request: Mapping[str, Any]) -> Ending:
    config = request["config"]
    if config["backend"] == "eager":
        return measured(1.0, noise=0.005)
    return measured(TRUTH[config["mode"]], compile_s=2.0 if config["dynamic"] else 1.0)


def studies(run: str | Path) -> optuna.Study:
    storage = f"sqlite:///{Path(run).resolve()}/study.db"
    return optuna.load_study(study_name="autocompile", storage=storage)


def test_baselines_come_first_and_every_setting_is_tried_once(target: Path) -> None:
    executor = FakeExecutor(script)
    result = tune(target, executor=executor, effort="full")
    search = [r for r in executor.requests if "repeats" not in r]
    first = [(r["config"]["backend"], r["config"]["mode"], r["batch_size"]) for r in search[:6]]
    assert {batch for _, _, batch in first} == {1, 4, 16}
    assert all(
        backend == "eager"
        for i, (backend, _, batch) in enumerate(first)
        if batch not in [b for _, _, b in first[:i]]
    ), "no speed-up means anything without eager at that batch size"
    seen = [(json.dumps(r["config"], sort_keys=True), r["batch_size"]) for r in search]
    assert len(seen) == len(set(seen))
    assert result.config["forward"].mode == "max-autotune"


def test_what_cannot_differ_is_answered_from_the_record(target: Path) -> None:
    executor = FakeExecutor(script)
    result = tune(target, executor=executor, space=SearchSpace(batch_sizes=(4,), freezing=(False,)))
    by_number = {r.number: r for r in result.trials}
    twins = [r for r in result.trials if r.duplicate_of is not None]
    assert twins
    for twin in twins:
        source = by_number[twin.duplicate_of or 0]
        assert source.duplicate_of is None
        assert source.measurement == twin.measurement
        assert source.config.mode == twin.config.mode
        assert twin.config.fullgraph
        assert any("a few microseconds more per call" in note for note in twin.notes)
    # eager and two modes; fullgraph is answered.
    assert len([r for r in executor.requests if "repeats" not in r]) == 3


def test_a_graph_that_breaks_is_not_compiled_fullgraph_again_and_again(target: Path) -> None:
    def breaking(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        if config["fullgraph"]:
            return failed("graph_break", message="Unsupported: print")
        if config["backend"] == "eager":
            return measured(1.0)
        return measured(TRUTH[config["mode"]], graph_breaks=2)

    executor = FakeExecutor(breaking)
    result = tune(target, executor=executor, space=SearchSpace(batch_sizes=(4,)))
    # The plain trial says that it broke: no other has to fail of it.
    assert not any(r["config"]["fullgraph"] for r in executor.requests)
    broken = [r for r in result.trials if r.outcome.value == "graph_break"]
    assert len(broken) > 1
    assert all(r.config.fullgraph and "broke the graph 2 times" in r.message for r in broken)


def test_what_dynamo_cannot_capture_is_not_compiled_by_one_mode_after_another(target: Path) -> None:
    def empty(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        return failed("not_compiled", step="verify", message="Dynamo captured no graph")

    executor = FakeExecutor(empty)
    space = SearchSpace(batch_sizes=(4,), freezing=(False,), scope=("full",))
    result = tune(target, executor=executor, space=space)
    compiled = [r for r in executor.requests if r["config"]["backend"] != "eager"]
    assert len(compiled) == 1
    others = [r for r in result.trials if r.outcome.value == "not_compiled" and not r.wall_s]
    assert others
    assert {r.duplicate_of for r in others} == {compiled[0]["number"]}


def test_failures_are_told_to_optuna_as_pruned_with_their_outcome(target: Path) -> None:
    def half(request: Mapping[str, Any]) -> Ending:
        if request["config"]["mode"] == "max-autotune":
            return failed("crashed", message="SIGSEGV in compile")
        return script(request)

    result = tune(target, executor=FakeExecutor(half), space=SearchSpace(batch_sizes=(4,)))
    rows = studies(result.run_dir).get_trials()
    outcomes = {r.user_attrs["outcome"]: r.state for r in rows if r.user_attrs["outcome"] != "ok"}
    pruned = optuna.trial.TrialState.PRUNED
    assert outcomes == {"crashed": pruned}
    assert all(r.state.is_finished() for r in rows)
    best = studies(result.run_dir).best_trial
    assert best.params["mode"] == "default"
    assert best.value == pytest.approx(1.2, rel=0.01)


def test_only_fresh_processes_are_reported(target: Path) -> None:
    def flattering(request: Mapping[str, Any]) -> Ending:
        if "repeats" in request and request["config"]["mode"] == "max-autotune":
            return measured(1.3)
        return script(request)

    executor = FakeExecutor(flattering)
    result = tune(target, executor=executor, space=SearchSpace(batch_sizes=(4,)))
    best = result.to_dict()["phases"]["forward"]["best"]
    assert best["speedup"]["value"] == pytest.approx(1.3, rel=0.01)
    assert best["confirmed_processes"] == 3
    assert best["speedup_against_default"]["value"] == pytest.approx(1.3 / 1.2, rel=0.01)


def test_a_winner_that_fails_once_when_repeated_is_not_best(target: Path) -> None:
    def fragile(request: Mapping[str, Any]) -> Ending:
        if "repeats" in request and request["config"]["mode"] == "max-autotune":
            return failed("wrong_output", "verify")
        return script(request)

    result = tune(target, executor=FakeExecutor(fragile), space=SearchSpace(batch_sizes=(4,)))
    assert result.config["forward"].mode == "default"


def test_a_gain_within_the_noise_is_no_gain(target: Path) -> None:
    def level(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0, noise=0.03)
        return measured(1.008, noise=0.001)

    result = tune(target, executor=FakeExecutor(level), space=SearchSpace(batch_sizes=(4,)))
    assert result.verdict == {"forward": "keep_eager"}
    assert result.config["forward"].is_eager
    reason = result.to_dict()["phases"]["forward"]["reason"]
    assert re.fullmatch(r"nothing that was tried is more than \S+ % faster \(95 %\)", reason)


def test_what_slows_eager_down_beside_it_is_not_faster(target: Path) -> None:
    def spinning(request: Mapping[str, Any]) -> Ending:
        if request["config"]["mode"] == "max-autotune":
            return measured(1.5, flags=("eager_slowed",))
        return script(request)

    result = tune(target, executor=FakeExecutor(spinning), space=SearchSpace(batch_sizes=(4,)))
    assert result.config["forward"].mode == "default"
    phase = result.to_dict()["phases"]["forward"]
    assert any("eager runs slower beside it" in note for note in phase["notes"])
    said = {tuple(row["settings"]): row["reason"] for row in phase["why_not"]}
    assert "eager runs slower beside it" in str(said), said


def test_where_all_settings_slow_eager_down_that_is_the_reason(target: Path) -> None:
    def spinning(request: Mapping[str, Any]) -> Ending:
        is_eager = request["config"]["backend"] == "eager"
        return script(request) if is_eager else measured(2.5, flags=("eager_slowed",))

    result = tune(target, executor=FakeExecutor(spinning), space=SearchSpace(batch_sizes=(4,)))
    phase = result.to_dict()["phases"]["forward"]
    assert phase["verdict"] == "keep_eager"
    assert phase["reason"] == "beside every setting that works eager runs slower than alone"


def test_whom_the_search_could_not_see_for_others_gets_its_turn(target: Path) -> None:
    """A neighbour was busy in the one trial of the best setting, and its interval says nothing."""
    truth = {"default": 1.2, "lite": 1.1, "max-autotune": 1.5}

    def script_(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        mode = request["config"]["mode"]
        if mode == "max-autotune" and "repeats" not in request:
            return measured(1.1, noise=0.5)
        return measured(truth[mode])

    space = SearchSpace(batch_sizes=(4,), fullgraph=(False,), freezing=(False,))
    executor = FakeExecutor(script_, probed(modes={m: m for m in truth}))
    result = tune(target, executor=executor, space=space, effort="quick")
    assert result.config["forward"].mode == "max-autotune"


def test_without_eager_there_is_no_verdict(target: Path) -> None:
    def alone(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return failed("timeout", "eager")
        return script(request)

    with pytest.raises(NothingWorked, match="eager mode was not measured"):
        tune(target, executor=FakeExecutor(alone), space=SearchSpace(batch_sizes=(4,)))


def test_where_one_phase_has_no_eager_nothing_is_recommended_for_it(target: Path) -> None:
    def alone(request: Mapping[str, Any]) -> Ending:
        is_eager = request["config"]["backend"] == "eager"
        is_step = request["phase"] == "optimizer_step"
        return failed("timeout", "eager") if is_eager and is_step else script(request)

    probe = probed()
    probe.payload["target"]["phases"] = ["forward", "optimizer_step"]
    space = SearchSpace(batch_sizes=(4,), optimizer=("default",))
    result = tune(target, executor=FakeExecutor(alone, probe), space=space)
    assert result.verdict == {"forward": "faster", "optimizer_step": "failed"}
    assert set(result.config) == {"forward"}


def test_of_equal_settings_the_cheapest_to_compile_wins(target: Path) -> None:
    def equal(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        if config["backend"] == "eager":
            return measured(1.0)
        return measured(1.3, compile_s=9.0 if config["mode"] == "default" else 3.0)

    result = tune(target, executor=FakeExecutor(equal), space=SearchSpace(batch_sizes=(4,)))
    assert result.config["forward"].mode == "max-autotune"
    assert len(result.to_dict()["phases"]["forward"]["ties"]) > 1


def test_trials_and_time_are_budgets(target: Path) -> None:
    executor = FakeExecutor(script)
    result = tune(target, executor=executor, trials=4, run_dir="few")
    assert len([r for r in executor.requests if "repeats" not in r]) == 4
    phase = result.to_dict()["phases"]["forward"]
    assert phase["tried"] < phase["settings"]
    executor = FakeExecutor(script)
    with pytest.raises(NothingWorked, match="the run ended before any setting"):
        tune(target, executor=executor, budget_s=1e-9, run_dir="none", trials=None)
    assert executor.requests == []


class PressesCtrlC(FakeExecutor):
    """Ctrl-C while the trial runs that is started after so many others."""

    def __init__(self, after: int, script: Callable[[Mapping[str, Any]], Ending] = script) -> None:
        super().__init__(script)
        self.after: int | None = after

    def wait(self, timeout_s: float) -> list[Event]:
        if self.after is not None and len(self.requests) - 1 >= self.after:
            self.after = None
            raise KeyboardInterrupt
        return super().wait(timeout_s)


def test_ctrl_c_in_the_first_confirmation_reports_what_the_search_found(target: Path) -> None:
    space = SearchSpace(batch_sizes=(4,))
    undisturbed = FakeExecutor(script)
    tune(target, executor=undisturbed, space=space)
    searched = sum("repeats" not in request for request in undisturbed.requests)
    stopped = tune(target, executor=PressesCtrlC(searched), space=space)
    assert stopped.interrupted
    assert stopped.verdict == {"forward": "faster"}
    assert stopped.config["forward"].mode == "max-autotune"


@pytest.mark.parametrize("repeats", range(1, 7))
def test_ctrl_c_on_the_way_through_a_round_does_not_undo_who_had_no_turn_yet(
    target: Path, repeats: int
) -> None:
    """In whatever order: the best is reported, as not confirmed where it was not."""
    space = SearchSpace(batch_sizes=(4,))

    def near(request: Mapping[str, Any]) -> Ending:
        is_default = request["config"]["mode"] == "default"
        is_compiled = request["config"]["backend"] != "eager"
        return measured(1.02, noise=0.03) if is_default and is_compiled else script(request)

    undisturbed = FakeExecutor(near)
    tune(target, executor=undisturbed, space=space)
    searched = sum("repeats" not in request for request in undisturbed.requests)
    stopped = tune(target, executor=PressesCtrlC(searched + repeats, near), space=space)
    assert stopped.interrupted
    assert stopped.config["forward"].mode == "max-autotune"
    best = stopped.to_dict()["phases"]["forward"]["best"]
    if best["confirmed_processes"] < 2:
        assert not stopped.is_faster_by(1.1, "forward")


@pytest.mark.parametrize("at", [0, 1, 2])  # a baseline, and twice the search
def test_after_ctrl_c_there_is_a_report_and_resume_repeats_nothing(target: Path, at: int) -> None:
    space = SearchSpace(batch_sizes=(4,))
    first = PressesCtrlC(at)
    stopped = tune(target, executor=first, space=space)
    assert stopped.interrupted
    assert (Path(stopped.run_dir) / "report.json").exists()
    if not at:  # nothing to conclude from
        assert stopped.verdict == {"forward": "failed"}
        assert "the run ended before any" in stopped.to_dict()["phases"]["forward"]["reason"]
    second = FakeExecutor(script)
    result = tune(target, executor=second, resume=True)
    assert not result.interrupted
    assert result.run_dir == stopped.run_dir
    undisturbed = tune(target, executor=FakeExecutor(script), space=space)

    def finished(r: autocompile.Result) -> list[tuple[str, str, int | None]]:
        kept = [t for t in r.trials if t.outcome.value != "interrupted"]
        return sorted((t.role, t.config.key, t.duplicate_of and -1) for t in kept)

    assert finished(result) == finished(undisturbed)
    assert result.config == undisturbed.config


def test_a_tuner_that_was_killed_is_repaired_on_resume(target: Path) -> None:
    result = tune(target, executor=FakeExecutor(script), trials=4)
    folder = RunFolder(result.run_dir)
    study = studies(folder.path)
    study.ask()  # a row left open, as by SIGKILL
    lost = max(r.number for r in result.trials if r.role == "search")
    with sqlite3.connect(folder.study_db) as database:  # a record that Optuna never heard of
        ids = "SELECT trial_id FROM trial_user_attributes WHERE key='number' AND value_json=?"
        (row,) = database.execute(ids, (str(lost),)).fetchone()
        for table in ("trial_user_attributes", "trial_params", "trial_values", "trials"):
            database.execute(f"DELETE FROM {table} WHERE trial_id=?", (row,))
    tune(target, executor=FakeExecutor(script), resume=True, run_dir=result.run_dir)
    rows = studies(folder.path).get_trials()
    assert all(r.state.is_finished() for r in rows)
    numbers = [r.user_attrs["number"] for r in rows if "number" in r.user_attrs]
    assert lost in numbers
    assert len(numbers) == len(set(numbers))


def test_resume_names_the_dimensions_that_differ(target: Path) -> None:
    tune(target, executor=FakeExecutor(script), space=SearchSpace(batch_sizes=(4,)), trials=3)
    other = SearchSpace(batch_sizes=(8,))
    with pytest.raises(UsageError) as raised:
        tune(target, executor=FakeExecutor(script), resume=True, space=other)
    assert "it has batch_sizes=(4,), now batch_sizes=(8,) was asked for" in str(raised.value)


def test_resume_with_other_settings_is_refused(target: Path) -> None:
    tune(target, executor=FakeExecutor(script), trials=4)
    with pytest.raises(UsageError, match="another effort"):
        tune(target, executor=FakeExecutor(script), resume=True, effort="full")


def test_a_used_folder_is_not_overwritten(target: Path) -> None:
    tune(target, executor=FakeExecutor(script), trials=4, run_dir="mine")
    with pytest.raises(RunError, match="already holds a run"):
        tune(target, executor=FakeExecutor(script), run_dir="mine")


def test_two_tuners_on_one_run_are_refused(target: Path) -> None:
    inner: list[BaseException] = []

    def greedy(request: Mapping[str, Any]) -> Ending:
        try:
            tune(target, executor=FakeExecutor(script), run_dir="mine", resume=True)
        except RunError as error:
            inner.append(error)
        return script(request)

    tune(target, executor=FakeExecutor(greedy), run_dir="mine", trials=4)
    assert "another autocompile is at work" in str(inner[0])


class Listener(SilentProgress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def test_a_torn_database_is_made_anew_from_the_records(target: Path) -> None:
    result = tune(target, executor=FakeExecutor(script), trials=4, run_dir="mine")
    Path("mine/study.db").write_bytes(b"this is no database" * 100)
    show = Listener()
    again = tune(target, executor=FakeExecutor(script), run_dir="mine", resume=True, progress=show)
    assert {r.number for r in result.trials} <= {r.number for r in again.trials}
    numbers = {r.user_attrs.get("number") for r in studies("mine").get_trials()}
    assert {r.number for r in again.trials if r.role == "search"} == numbers
    assert len(show.warnings) == 1
    assert "rebuilt" in show.warnings[0]
    assert Path("mine/study.db.torn").read_bytes().startswith(b"this is no database")


def test_a_database_that_breaks_on_the_way_costs_no_trial(target: Path) -> None:
    def spoil(request: Mapping[str, Any]) -> Ending:
        if request["config"]["mode"] == "max-autotune" and Path("mine/study.db").is_file():
            with sqlite3.connect("mine/study.db") as database:
                database.execute("DROP TABLE IF EXISTS trials")
        return script(request)

    show = Listener()
    result = tune(target, executor=FakeExecutor(spoil), run_dir="mine", progress=show)
    assert result.config["forward"].mode == "max-autotune"
    assert len(show.warnings) == 1
    assert "--resume adds the missing rows" in show.warnings[0]


def test_a_storage_of_the_users_that_cannot_be_used_is_one_paragraph(target: Path) -> None:
    for url in ("sqlite:////nowhere/at/all.db", "postgresql://nobody@localhost/none", "rubbish"):
        with pytest.raises(RunError, match="cannot be used") as caught:
            tune(target, executor=FakeExecutor(script), storage=url, run_dir=f"r{len(url)}")
        assert "another --storage" in caught.value.text()


@pytest.mark.parametrize("slots", [2, 5, 100])
def test_side_by_side_the_same_settings_are_tried_and_none_twice(target: Path, slots: int) -> None:
    space = SearchSpace(batch_sizes=(1, 4))
    one = tune(target, executor=FakeExecutor(script), space=space, effort="full")
    executor = FakeExecutor(script, slots=slots)
    many = tune(target, executor=executor, space=space, effort="full")

    def found(result: autocompile.Result) -> list[Any]:
        kept = [r for r in result.trials if r.role == "search"]
        return sorted(
            (r.config.key, r.batch_size or 0, r.outcome.value, r.duplicate_of is None) for r in kept
        )

    assert found(many) == found(one)
    search = [r for r in executor.requests if "repeats" not in r]
    assert len(search) == sum(not row[2] or (row[2] == "ok" and row[3]) for row in found(one))


class Recorder(FakeExecutor):
    """Remembers the jobs, and how many others ran when each was started; exported code left out."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.jobs: list[tuple[Job, int]] = []
        self.alive: set[int] = set()

    def start(self, job: Job) -> None:
        if json.loads((job.folder / "request.json").read_text("utf-8"))["kind"] != "exported":
            self.jobs.append((job, len(self.alive)))
        self.alive.add(job.number)
        super().start(job)

    def wait(self, timeout_s: float) -> list[Event]:
        events = super().wait(timeout_s)
        self.alive -= {e.number for e in events if isinstance(e, Ended)}
        return events


def test_what_forking_or_a_neighbour_may_have_caused_is_tried_again_alone(target: Path) -> None:
    tries: list[Mapping[str, Any]] = []

    def fragile(request: Mapping[str, Any]) -> Ending:
        if request["config"]["mode"] != "max-autotune" or "repeats" in request:
            return script(request)
        tries.append(request)
        if len(tries) > 1:
            return script(request)
        first = failed("timeout", message="still in compile after 300 s")
        return dataclasses.replace(first, doubts=("forked",))

    executor = Recorder(fragile, slots=4)
    result = tune(target, executor=executor, space=SearchSpace(batch_sizes=(1, 4)))
    fresh = [(job, beside) for job, beside in executor.jobs if job.fresh]
    ((job, beside),) = fresh
    assert beside == 0
    record = next(r for r in result.trials if r.number == job.number)
    assert record.ok
    assert "second try, alone" in record.notes[0]
    assert "timeout in compile (still in compile after 300 s)" in record.notes[0]
    later = executor.jobs[executor.jobs.index(fresh[0]) + 1 :]
    assert later
    assert executor.jobs.count((job, 0)) == 1


def test_a_second_try_that_fails_as_well_is_the_result(target: Path) -> None:
    def broken(request: Mapping[str, Any]) -> Ending:
        if request["config"]["mode"] == "max-autotune":
            first = failed("crashed", message="SIGSEGV in compile")
            return dataclasses.replace(first, doubts=("forked",))
        return script(request)

    executor = Recorder(broken)
    result = tune(target, executor=executor, space=SearchSpace(batch_sizes=(4,)))
    crashed = [r for r in result.trials if r.outcome.value == "crashed"]
    assert crashed
    for record in crashed:
        assert [j.fresh for j, _ in executor.jobs if j.number == record.number] == [False, True]


def doubtful(request: Mapping[str, Any]) -> Ending:
    if request["config"]["mode"] == "max-autotune":
        return dataclasses.replace(failed("timeout", message="slow"), doubts=("forked",))
    return script(request)


def test_ctrl_c_before_a_second_try_loses_neither_the_setting_nor_what_was_seen(
    target: Path, request: pytest.FixtureRequest
) -> None:
    class Impatient(Recorder):
        pressed = False  # twice would end pytest too

        def wait(self, timeout_s: float) -> list[Event]:
            events = super().wait(timeout_s)
            if not self.pressed and any(isinstance(e, Ended) and e.ending.doubts for e in events):
                self.pressed = True
                signal.raise_signal(signal.SIGINT)
            return events

    # A test run in the background of a shell would have inherited an ignored SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    space = SearchSpace(batch_sizes=(4,), freezing=(False,))
    result = tune(target, executor=Impatient(doubtful, slots=2), space=space, run_dir="mine")
    assert result.interrupted
    (stopped,) = [r for r in result.trials if r.outcome.value == "interrupted"]
    assert "the first ended with timeout (slow)" in stopped.message
    again = tune(target, executor=FakeExecutor(script), run_dir="mine", resume=True)
    assert again.config["forward"].mode == "max-autotune"


def test_a_second_try_waits_for_no_budget_that_is_spent(target: Path) -> None:
    clock = Clock()

    class Late(Recorder):
        def wait(self, timeout_s: float) -> list[Event]:
            events = super().wait(timeout_s)
            if any(isinstance(e, Ended) and e.ending.doubts for e in events):
                clock.work(10.5)
            return events

    executor = Late(doubtful)
    space = SearchSpace(batch_sizes=(4,))
    result = tune(target, executor=executor, space=space, budget_s=10.0, clock=clock.monotonic)
    assert not any(job.fresh for job, _ in executor.jobs)
    (record,) = [r for r in result.trials if r.outcome.value == "timeout" and r.wall_s]
    assert "the budget was spent" in record.notes[0]


def test_what_the_setting_itself_caused_is_not_tried_again(target: Path) -> None:
    executor = Recorder(
        lambda r: failed("timeout") if r["config"]["mode"] == "max-autotune" else script(r)
    )
    tune(target, executor=executor, space=SearchSpace(batch_sizes=(4,)))
    assert not any(job.fresh for job, _ in executor.jobs)


def test_a_compile_gets_less_time_once_others_of_its_kind_have_been_seen(target: Path) -> None:
    def quick(request: Mapping[str, Any]) -> Ending:
        return dataclasses.replace(script(request), step_s={"compile": 2.0})

    executor = Recorder(quick)
    space = SearchSpace(batch_sizes=(1, 2, 4, 8, 16))
    tune(target, executor=executor, space=space, timeout_s=500)
    allowed = [j.compile_timeout_s for j, _ in executor.jobs if j.number >= 0]
    assert allowed[0] == 500
    assert 60 in allowed
    assert all(j.timeout_s == 500 and j.total_timeout_s == 1500 for j, _ in executor.jobs[1:])


def test_the_caches_of_those_that_cannot_win_are_removed(target: Path) -> None:
    cached: list[int] = []

    def caching(request: Mapping[str, Any]) -> Ending:
        cached.append(len(list(Path("mine/cache").glob("0*"))))
        return measured(1.0 + request["number"] / 100, graph_breaks=1)

    tune(target, executor=FakeExecutor(caching), effort="full", run_dir="mine")
    assert max(cached) <= 3 * 9 + 4, "eight and default for each batch size, and what runs"
    assert not Path("mine/cache").exists(), "after the confirmation none is needed"


def test_a_full_disk_is_one_paragraph_before_anything_is_lost(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(".")

    def full(path: Any) -> Any:
        done = len(list(Path("mine/trials").glob("*/result.json")))
        return free._replace(free=free.free if done < 3 else 10 * 2**20)

    monkeypatch.setattr(shutil, "disk_usage", full)
    with pytest.raises(RunError, match="only 10 MiB are free"):
        tune(target, executor=FakeExecutor(script), run_dir="mine")
    monkeypatch.undo()
    monkeypatch.chdir(target.parent)
    result = tune(target, executor=FakeExecutor(script), run_dir="mine", resume=True)
    assert result.config["forward"].mode == "max-autotune"


def test_a_cache_that_cannot_be_written_is_one_paragraph(target: Path) -> None:
    def spoil(request: Mapping[str, Any]) -> Ending:
        shutil.rmtree("mine/cache", ignore_errors=True)
        Path("mine/cache").write_text("in the way")
        return script(request)

    with pytest.raises(RunError, match="cannot write the compiler cache"):
        tune(target, executor=FakeExecutor(spoil), run_dir="mine")


def test_nothing_that_works_is_an_error_that_says_why(target: Path) -> None:
    executor = FakeExecutor(lambda request: failed("crashed", message="SIGSEGV in compile"))
    with pytest.raises(NothingWorked, match="SIGSEGV in compile"):
        tune(target, executor=executor, space=SearchSpace(batch_sizes=(4,)))


def test_limits_keep_settings_out(target: Path) -> None:
    from autocompile.estimate.candidates import Limits

    def heavy(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        if config["backend"] == "eager":
            return measured(1.0)
        big = config["mode"] == "max-autotune"
        return measured(TRUTH[config["mode"]], peak_memory_bytes=10**9 if big else 10**6)

    result = tune(
        target,
        executor=FakeExecutor(heavy),
        space=SearchSpace(batch_sizes=(4,)),
        limits=Limits(memory_bytes=10**8),
    )
    assert result.config["forward"].mode == "default"


def test_latency_prefers_small_batches_and_throughput_large_ones(target: Path) -> None:
    def sized(request: Mapping[str, Any]) -> Ending:
        speed = 1.0 if request["config"]["backend"] == "eager" else 1.3
        return measured(speed, eager_s=1e-3 * (1 + 0.1 * (request["batch_size"] or 1)))

    fast = tune(target, executor=FakeExecutor(sized), objective="latency")
    wide = tune(target, executor=FakeExecutor(sized))
    assert fast.best["forward"].batch_size == 1
    assert wide.best["forward"].batch_size == 16


def test_a_run_is_loaded_as_it_was(target: Path) -> None:
    result = tune(target, executor=FakeExecutor(script))
    assert load("last").to_dict() == result.to_dict()
    assert load(Path(result.run_dir).name).config == result.config
    assert json.loads((Path(result.run_dir) / "report.json").read_text()) == result.to_dict()


def test_a_result_that_makes_no_sense_is_infrastructure(target: Path) -> None:
    def nonsense(request: Mapping[str, Any]) -> Ending:
        if request["config"]["mode"] == "max-autotune":
            return measured(1.0, measurement={"eager_s": "soon", "compiled_s": [None]})
        return script(request)

    result = tune(target, executor=FakeExecutor(nonsense), space=SearchSpace(batch_sizes=(4,)))
    outcomes = {r.outcome.value for r in result.trials if r.config.mode == "max-autotune"}
    assert outcomes == {"infrastructure"}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"backends": ("inducter",)}, "inducter"),
        ({"modes": ("fastest",)}, "fastest"),
        ({"batch_sizes": (0,)}, "batch size 0"),
        ({"fullgraph": ()}, "empty"),
    ],
)
def test_a_space_that_cannot_be_is_refused(target: Path, space: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tune(target, executor=FakeExecutor(script), space=SearchSpace(**space))


def test_a_fixed_batch_and_the_targets_own_batch_size_are_used(target: Path) -> None:
    probe = probed()
    fixed = {**probe.payload["target"], "fixed_batch_size": 7}
    executor = FakeExecutor(script, probed(target=fixed))
    tune(target, executor=executor)
    assert {r["batch_size"] for r in executor.requests} == {7}
    tune(target, executor=executor, space=SearchSpace(batch_sizes=(7,)))
    with pytest.raises(UsageError, match=r"inputs of .* have batch size 7"):
        tune(target, executor=executor, space=SearchSpace(batch_sizes=(1, 7)), run_dir="refused")
    assert not Path("refused").exists()
    own = {**probe.payload["target"], "own_batch_size": {"forward": 32}}
    executor = FakeExecutor(script, probed(target=own))
    tune(target, executor=executor)
    assert {r["batch_size"] for r in executor.requests} == {1, 4, 16, 32}


def test_a_lucky_setting_that_nobody_confirmed_is_not_reported(target: Path) -> None:
    """The confirmed leader turns out to differ between processes; the runner-up was never run."""
    again = {"max-autotune": cycle([1.25, 1.35, 0.7]), "default": cycle([1.0, 1.01, 0.99])}

    def shaky(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        if "repeats" in request:
            return measured(next(again[request["config"]["mode"]]))
        return measured({"default": 1.10, "max-autotune": 1.30}[request["config"]["mode"]])

    result = tune(
        target,
        executor=FakeExecutor(shaky),
        space=SearchSpace(batch_sizes=(4,), freezing=(False,)),
        effort="quick",
    )
    assert result.verdict["forward"] == "keep_eager"


def test_what_looked_better_in_the_search_than_the_best_that_was_confirmed_is_confirmed_too(
    target: Path,
) -> None:
    """The search flattered the leader: the runner-up, which is better, gets its turn."""
    seen = {"max-autotune": 1.5, "default": 1.2, "lite": 1.3}
    again = {"max-autotune": 1.1, "default": 1.2, "lite": 1.3}

    def script_(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        return measured((again if "repeats" in request else seen)[request["config"]["mode"]])

    probe = probed(modes={m: m for m in seen})
    space = SearchSpace(batch_sizes=(4,), fullgraph=(False,))
    executor = FakeExecutor(script_, probe)
    result = tune(target, executor=executor, space=space, effort="quick")
    assert result.config["forward"].mode == "lite"


def test_of_equals_the_one_that_is_torchs_own_is_chosen_unless_it_compiles_for_longer(
    target: Path,
) -> None:
    def equal(request: Mapping[str, Any], default_s: float) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        plain = request["config"]["mode"] == "default"
        return measured(1.195 if plain else 1.2, compile_s=default_s if plain else 2.0)

    for default_s, mode in ((2.2, "default"), (4.0, "max-autotune")):
        executor = FakeExecutor(partial(equal, default_s=default_s))
        result = tune(target, executor=executor, space=SearchSpace(batch_sizes=(4,)))
        assert result.config["forward"].mode == mode


def test_eager_is_its_own_baseline_and_its_noise_no_speed_up(target: Path) -> None:
    def lopsided(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.5)
        return measured(1.005)

    result = tune(target, executor=FakeExecutor(lopsided), space=SearchSpace(batch_sizes=(4,)))
    assert result.speedup["forward"].value == 1.0
    best = result.to_dict()["phases"]["forward"]["best"]
    assert best["throughput"]["value"] == best["eager_throughput"]["value"]
    assert not result.is_faster_by(1.05, "forward")


def test_a_folder_that_holds_something_else_is_left_alone(target: Path) -> None:
    precious = Path("project/cache/precious.txt")
    precious.parent.mkdir(parents=True)
    precious.write_text("keep me")
    with pytest.raises(RunError, match="not empty and holds no run"):
        tune(target, executor=FakeExecutor(script), run_dir="project")
    assert precious.read_text() == "keep me"


def test_a_tolerance_is_in_each_request_and_kept_for_resume(target: Path) -> None:
    executor = FakeExecutor(script)
    space = SearchSpace(batch_sizes=(4,))
    result = tune(target, executor=executor, space=space, tolerance=0.05, run_dir="mine")
    assert {request["tolerance"] for request in executor.requests} == {0.05}
    assert result.to_dict()["tolerance"] == 0.05
    assert json.loads(Path("mine/run.json").read_text())["plan"]["tolerance"] == 0.05
    with pytest.raises(UsageError, match="another tolerance"):
        tune(target, executor=FakeExecutor(script), run_dir="mine", resume=True, tolerance=0.1)
    for senseless in (0.0, 1.0, float("nan")):
        with pytest.raises(UsageError, match="not between 0 and 1"):
            tune(target, executor=FakeExecutor(script), tolerance=senseless)


def test_a_target_that_was_edited_is_not_resumed(target: Path) -> None:
    probe = probed()

    def of(sha256: str) -> Ending:
        return probed(target={**probe.payload["target"], "sha256": sha256})

    tune(target, executor=FakeExecutor(script, of("one")), trials=4)
    with pytest.raises(RunError, match="has changed since"):
        tune(target, executor=FakeExecutor(script, of("two")), resume=True)


def test_a_setting_that_does_not_exist_leaves_no_run_behind(target: Path) -> None:
    tune(target, executor=FakeExecutor(script), trials=4)
    with pytest.raises(UsageError):
        tune(target, executor=FakeExecutor(script), space=SearchSpace(modes=("fastest",)))
    assert load("last").run_dir.endswith("net-0001")


def test_a_break_under_dynamic_says_nothing_of_static_shapes(target: Path) -> None:
    def breaking(request: Mapping[str, Any]) -> Ending:
        config = request["config"]
        if config["backend"] == "eager":
            return measured(1.0)
        if config["fullgraph"] and config["dynamic"]:
            return failed("graph_break", message="Unsupported: data dependent")
        return measured(1.2, graph_breaks=1 if config["dynamic"] else 0)

    result = tune(
        target, executor=FakeExecutor(breaking), space=SearchSpace(batch_sizes=(4,)), effort="full"
    )
    for r in result.trials:
        broken = r.outcome.value == "graph_break"
        assert broken == (r.config.fullgraph and r.config.dynamic is True)


def frozen(request: Mapping[str, Any], refresh_s: float) -> Ending:
    """Frozen weights make calls of 1 ms twice as fast."""
    if not request["config"]["freezing"]:
        return script(request)
    return measured(2.0, refresh_s=refresh_s, calls_per_update=request["calls_per_update"])


@pytest.mark.parametrize(
    ("refresh_s", "calls", "wins", "tried"),
    [(0.1, None, True, 2), (0.1, 1000, True, 2), (0.1, 150, False, 1), (0.2, 100, False, 1)],
)
def test_what_new_weights_cost_decides_whether_constant_ones_pay(
    target: Path, refresh_s: float, calls: int | None, wins: bool, tried: int
) -> None:
    """At 150 calls between updates a call takes 0.5 ms and its share of 0.1 s: more than eager."""
    executor = FakeExecutor(partial(frozen, refresh_s=refresh_s))
    space = SearchSpace(modes=("default",), batch_sizes=(4, 8), fullgraph=(False,))
    result = tune(target, executor=executor, space=space, calls_per_update=calls, effort="full")
    assert result.config["forward"].freezing is wins
    search = [r for r in executor.requests if "repeats" not in r]
    assert sum(r["config"]["freezing"] for r in search) == tried
    skipped = [r for r in result.trials if r.message.startswith("not tried: new weights cost")]
    assert len(skipped) == 2 - tried


def test_the_smaller_the_batch_the_more_calls_lie_between_two_updates(target: Path) -> None:
    """Where an update takes so many samples; new weights that cost 0.06 s then pay at batch 4."""
    probe = probed()
    probe.payload["target"]["samples_per_update"] = {"forward": 1200}
    executor = FakeExecutor(partial(frozen, refresh_s=0.06), probe)
    space = SearchSpace(modes=("default",), batch_sizes=(4, 8), fullgraph=(False,))
    result = tune(target, executor=executor, space=space, effort="full")
    calls = {(r["batch_size"], r["calls_per_update"]) for r in executor.requests}
    assert calls == {(4, 300), (8, 150)}
    rows = result.to_dict()["phases"]["forward"]["by_batch_size"]
    configs = {r.number: r.config for r in result.trials}
    best = {row["batch_size"]: configs[row["number"]] for row in rows}
    assert best[4].freezing and not best[8].freezing


def test_the_report_holds_why_settings_were_left_out(target: Path) -> None:
    tune(target, executor=FakeExecutor(script), space=SearchSpace(batch_sizes=(4,)), run_dir="mine")
    dropped = load("mine").to_dict()["phases"]["forward"]["dropped"]
    assert dropped["the model has no convolutions"] == 1


def test_an_agents_weights_change_at_times_that_somebody_has_to_say(target: Path) -> None:
    probe = probed()
    phases = {**probe.payload["target"], "phases": ["forward_exploration"], "is_rl": True}
    probe = dataclasses.replace(probe, payload={**probe.payload, "target": phases})
    executor = FakeExecutor(partial(frozen, refresh_s=0.1), probe)
    result = tune(target, executor=executor, space=SearchSpace(batch_sizes=(4,)))
    assert result.config["forward_exploration"].mode == "max-autotune"
    notes = result.to_dict()["phases"]["forward_exploration"]["notes"]
    assert any("nobody has said how often they change (--calls-per-update)" in n for n in notes)


def test_code_that_has_been_timed_is_not_timed_again(target: Path) -> None:
    def coded(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return script(request)
        if twin := request.get("known_codes", {}).get("abc"):
            return Ending(Outcome.OK, Step.EXIT, payload={"same_code_as": twin}, wall_s=3.0)
        return measured(1.3, code="abc")

    space = SearchSpace(batch_sizes=(4,), fullgraph=(False,), dynamic=(None,), freezing=(False,))
    result = tune(target, executor=FakeExecutor(coded), space=space)
    assert result.config["forward"].mode == "default"
    (twin,) = [r for r in result.trials if r.config.mode == "max-autotune"]
    source = result.best["forward"]
    assert (twin.duplicate_of, twin.wall_s) == (source.number, 3.0)
    assert twin.measurement == source.measurement
    assert f"same code as for trial {source.number}" in twin.notes[-1]


def test_a_run_with_settings_that_are_not_listed_any_more_is_resumed(target: Path) -> None:
    space = SearchSpace(batch_sizes=(4,), dynamic=(None, False))
    tune(target, executor=FakeExecutor(script), space=space, run_dir="mine", trials=4)
    file = Path("mine/run.json")
    run = json.loads(file.read_text())
    run["plan"]["space"]["dynamic"] = [None]  # as an autocompile lists it that tries less
    file.write_text(json.dumps(run))
    result = tune(target, executor=FakeExecutor(script), run_dir="mine", resume=True)
    assert result.config["forward"].mode == "max-autotune"


def test_blocks_that_win_are_compiled_by_the_lines_of_the_export(target: Path) -> None:
    def regional(request: Mapping[str, Any]) -> Ending:
        return measured(2.0 if request["config"]["scope"] == "regional" else 1.0)

    found = probed().payload["target"]
    executor = FakeExecutor(regional, probed(target={**found, "regions": {"forward": "2 Linear"}}))
    space = SearchSpace(batch_sizes=(4,), modes=("default",), scope=("full", "regional"))
    result = tune(target, executor=executor, space=space, effort="quick")
    assert "regions_of(model).compile()" in result.export("python")


def test_reasons_for_not_trying_that_differ_by_figures_only_are_one(target: Path) -> None:
    costs = iter([0.3, 0.21, 0.27, 0.24, 0.22, 0.29])

    def slow(request: Mapping[str, Any]) -> Ending:
        return frozen(request, refresh_s=next(costs) if request["config"]["freezing"] else 0.2)

    space = SearchSpace(modes=("default", "max-autotune"), batch_sizes=(4, 8), fullgraph=(False,))
    result = tune(
        target, executor=FakeExecutor(slow), space=space, calls_per_update=100, effort="full"
    )
    said = [r.message for r in result.trials if r.message.startswith("not tried")]
    groups = [g for g in result.to_dict()["phases"]["forward"]["failures"] if g["answered"]]
    assert len(set(said)) > 1
    assert [g["count"] for g in groups] == [len(said)]
