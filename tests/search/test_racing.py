"""The race of the finalists, with scripted trials."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from conftest import Clock
from fakes import FakeExecutor, failed, kind_of, measured, probed
from scripts import (
    Listener,
    Recorder,
    Timed,
    is_best_raced,
    is_eager,
    speeds,
    target_with,
    tuned,
    with_modes,
)

import autocompile
from autocompile.execute.executor import Ended, Ending, Event, Job
from autocompile.protocol.requests import TrialRequest, read_request
from autocompile.report.contents import exported_warning
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.record import AT_WORK, Outcome, Step
from autocompile.store.report import Best

MODES = ("default", "lite", "max-autotune")
SPACE = SearchSpace(
    batch_sizes=(4,), fullgraph=(False,), freezing=(False,), modes=MODES
)
PROBED = {"modes": {m: m for m in MODES}}
CLEAR = speeds({"default": 1.2, "lite": 1.0, "max-autotune": 1.5})


def race(target: Path, script: Any = CLEAR, **options: Any) -> autocompile.Result:
    executor = (
        script if isinstance(script, FakeExecutor) else with_modes(script, *MODES)
    )
    return tuned(target, executor, **{"space": SPACE, **options})


def best_of(result: autocompile.Result) -> Best:
    best = result.report.phases["forward"].answer.best
    assert best
    return best


def raced(result: autocompile.Result) -> Counter[str]:
    return Counter(r.config.mode for r in result.trials if r.role == "confirm")


def lost(result: autocompile.Result) -> list[tuple[str, str]]:
    kept = [r for r in result.trials if r.role == "confirm" and not r.ok]
    return [(r.config.mode, r.outcome.value) for r in kept]


def test_all_checks_are_asked_once_of_what_is_raced_and_of_nothing_else(
    target: Path,
) -> None:
    executor = with_modes(CLEAR, *MODES)
    race(target, executor)
    asked = {True: Counter[str](), False: Counter[str]()}
    for request in executor.requests:
        own = {side["repeats"]: side["checks"] for side in request["sides"]}
        is_raced = request["kind"] == "race"
        asked[is_raced][own[request.get("repeats")]] += 1
    assert set(asked[False]) == {"first"}
    assert asked[True] == {"all": 2, "first": 4}, "of two settings in three sets"


def test_what_its_first_set_finds_wrong_is_dropped_and_the_next_gets_in(
    target: Path,
) -> None:
    speed = {"default": 1.2, "lite": 1.3, "max-autotune": 1.5}

    def script(request: Mapping[str, Any]) -> Ending:
        mode = request["config"]["mode"]
        if mode == "max-autotune" and "repeats" in request:
            return failed("stale_weights", "verify")
        return speeds(speed)(request)

    result = race(target, script, effort="full")
    assert set(lost(result)) == {("max-autotune", "stale_weights")}
    assert result.config["forward"].mode == "lite"
    assert best_of(result).confirmed_processes >= 3


def test_without_time_for_a_race_nothing_is_recommended(target: Path) -> None:
    clock = Clock()

    def slow(request: Mapping[str, Any]) -> Ending:
        steps = {"build": 20.0, "compile": 1.0}
        ending = CLEAR(request)
        return dataclasses.replace(ending, wall_s=21.0, step_s=steps)

    executor = Timed(slow, clock, probed(**PROBED))
    result = race(target, executor, budget_s=60.0, clock=clock.monotonic)
    assert not raced(result)
    answer = result.report.phases["forward"].answer
    assert answer.verdict == "unknown" and answer.best is None
    assert "has not passed all checks" in answer.reason


def test_three_sets_are_enough_where_the_order_is_clear(target: Path) -> None:
    result = race(target)
    assert raced(result) == {"max-autotune": 3, "default": 3}
    best = best_of(result)
    assert best.confirmed_processes == 3
    assert best.speedup_against_default
    assert best.speedup_against_default.value == pytest.approx(1.25, rel=0.01)
    assert result.report.phases["forward"].answer.is_decided


def test_who_may_still_be_better_gets_more_sets_and_no_more_than_six(
    target: Path,
) -> None:
    values = {
        "max-autotune": cycle([1.20, 1.32, 1.26]),
        "default": cycle([1.22, 1.18, 1.31]),
        "lite": cycle([1.0]),
    }
    result = race(
        target,
        lambda r: measured(1.0 if is_eager(r) else next(values[r["config"]["mode"]])),
    )
    assert raced(result)["max-autotune"] == 6
    answer = result.report.phases["forward"].answer
    assert answer.confidence == "open" and "may be up to" in answer.why
    assert answer.command == "", "each had all the sets that it may have"


def own_size(script: Any) -> FakeExecutor:
    target = target_with(own_batch_size={"forward": 4}).payload["target"]
    return FakeExecutor(script, probed(**PROBED, target=target))


def test_each_batch_size_and_phase_is_raced_the_users_own_first(target: Path) -> None:
    show, space = Listener(), dataclasses.replace(SPACE, batch_sizes=(1, 4, 16))
    result = race(target, own_size(CLEAR), space=space, progress=show)
    assert show.races == [4, 4, 4, 16, 16, 16, 1, 1, 1]
    phase = result.report.phases["forward"]
    assert phase.answer.batch_size == 4, "the user's own"
    best = [answer.best for answer in phase.answers]
    assert [one and one.confirmed_processes for one in best] == [3, 3, 3]


def test_each_phase_has_a_set_before_another_has_three(target: Path) -> None:
    class ByPhase(Listener):
        raced: list[str]

        def racing(
            self, phase: str, batch_size: int | None, rivals: int, number: int
        ) -> None:
            self.raced.append(phase)

    show = ByPhase()
    show.raced = []
    executor = with_modes(CLEAR, *MODES)
    payload = probed().payload["target"] | {"phases": ["forward", "optimizer_step"]}
    executor._probe = probed(**PROBED, target=payload)
    tuned(target, executor, space=SPACE, progress=show)
    assert set(show.raced[:2]) == {"forward", "optimizer_step"}
    assert [show.raced.count(phase) for phase in dict.fromkeys(show.raced)] == [3, 3]


def test_sets_of_a_slow_host_are_made_up_for_after_every_batch_size_had_three(
    target: Path,
) -> None:
    show, space = Listener(), dataclasses.replace(SPACE, batch_sizes=(1, 4))

    def slow_at_first(request: Mapping[str, Any]) -> Ending:
        found = CLEAR(request)
        is_slow = 0 < show.races.count(4) <= 2 and show.races[-1] == 4
        found.payload["reference_s"] = 1.3 if is_slow else 1.0
        return found

    result = race(target, own_size(slow_at_first), space=space, progress=show)
    assert show.races == [4, 4, 4, 1, 1, 1, 4, 4]
    best = best_of(result)
    assert (best.confirmed_processes, best.slow_sets) == (3, 2)


class Dies(FakeExecutor):
    """The process of a race dies while the setting with some mode is at work; "": with none."""

    def __init__(self, mode: str, outcome: str, times: int = 99) -> None:
        super().__init__(
            speeds({"default": 1.2, "lite": 1.3, "max-autotune": 1.5}), probed(**PROBED)
        )
        self.mode, self.outcome, self.times = mode, Outcome(outcome), times
        self.groups: list[list[str]] = []

    def start(self, job: Job) -> None:
        request = read_request(job.folder)
        if not isinstance(request, TrialRequest) or kind_of(request) != "race":
            super().start(job)
            return
        self.groups.append([side.config.mode for side in request.sides])
        guilty = [
            side.repeats for side in request.sides if side.config.mode == self.mode
        ]
        if not self.times or (self.mode and not guilty):
            super().start(job)
            return
        self.times -= 1
        if guilty:
            (job.folder / AT_WORK).write_text(f"{guilty[0]:8d}")
        ending = Ending(
            self.outcome, Step.MEASURE, f"{self.outcome.value} in measure", wall_s=1.0
        )
        self._events.append(Ended(job.number, ending))


@pytest.mark.parametrize("outcome", ["crashed", "timeout", "out_of_memory"])
def test_a_crash_or_a_hang_ends_that_candidate_and_not_the_race(
    target: Path, outcome: str
) -> None:
    executor = Dies("max-autotune", outcome)
    # A search that may end early has no need of "lite" beside what is so much faster.
    result = race(target, executor, effort="full")
    assert result.config["forward"].mode == "lite"
    assert best_of(result).confirmed_processes >= 3
    assert lost(result) == [("max-autotune", outcome)]
    assert ["max-autotune"] in executor.groups, (
        "it had a process of its own before it was given up"
    )


def test_who_failed_beside_others_and_not_by_itself_stays_in_the_race(
    target: Path,
) -> None:
    executor = Dies("max-autotune", "out_of_memory", times=1)
    assert race(target, executor).config["forward"].mode == "max-autotune"
    assert executor.groups.count(["max-autotune"]) >= 3


def test_a_process_that_dies_with_nobody_at_work_ends_the_race_with_a_warning(
    target: Path,
) -> None:
    show = Listener()
    result = race(target, Dies("", "crashed"), progress=show)
    (said,) = show.warnings
    assert "crashed in measure" in said
    answer = result.report.phases["forward"].answer
    assert answer.verdict == "unknown" and "has not passed all checks" in answer.reason
    assert not result.is_faster_by(1.01, "forward")


def test_who_sets_something_for_the_process_runs_by_itself_in_turns(
    target: Path,
) -> None:
    def one_thread(request: Mapping[str, Any]) -> Ending:
        is_one = request["config"]["threads"] == 1
        return measured(1.6 if is_one else 1.0 if is_eager(request) else 1.5)

    environment = {**probed().payload["environment"], "threads": 2}
    executor = Recorder(one_thread, probed(environment=environment), slots=2)
    space = dataclasses.replace(SPACE, modes=("default",), threads=(None, 1))
    result = race(target, executor, space=space)
    assert result.config["forward"].threads == 1
    races = executor.of("race")
    threads = [[side["config"]["threads"] for side in r["sides"]] for r in races]
    assert [None] in threads and [1] in threads
    assert not any(None in group and 1 in group for group in threads)
    assert all(r["takes_turns"] for r in races)


def test_a_backend_that_changes_the_process_for_what_follows_runs_by_itself(
    target: Path,
) -> None:
    def by_backend(request: Mapping[str, Any]) -> Ending:
        faster = {"eager": 1.0, "inductor": 1.5, "zentorch": 1.6}
        return measured(faster[request["config"]["backend"]])

    backends = {"inductor": "", "zentorch": ""}
    executor = Recorder(
        by_backend, probed(backends=backends, all_backends=[*backends]), slots=2
    )
    space = dataclasses.replace(SPACE, modes=("default",), freezing=(False, True))
    result = race(target, executor, space=space)
    assert result.config["forward"].backend == "zentorch"
    races = executor.of("race")
    groups = [[side["config"]["backend"] for side in r["sides"]] for r in races]
    assert ["zentorch"] in groups and ["inductor"] in groups
    assert all(group == ["zentorch"] for group in groups if "zentorch" in group)


def test_ctrl_c_in_a_race_keeps_the_sets_that_had_ended(target: Path) -> None:
    class Impatient(FakeExecutor):
        pressed = False

        def wait(self, timeout_s: float) -> list[Event]:
            if sum("repeats" in r for r in self.requests) > 4 and not self.pressed:
                self.pressed = True
                raise KeyboardInterrupt
            return super().wait(timeout_s)

    stopped = race(target, Impatient(CLEAR, probed(**PROBED)))
    assert stopped.interrupted
    assert best_of(stopped).confirmed_processes == 2
    result = race(target, resume=True)
    assert best_of(result).confirmed_processes == 3
    assert raced(result)["max-autotune"] == 3, (
        "the sets that were there are not repeated"
    )


def test_a_setting_that_is_wrong_in_a_race_is_not_recommended(target: Path) -> None:
    wrong = failed("wrong_output", "verify", "outputs differ")
    result = race(target, lambda r: wrong if is_best_raced(r) else CLEAR(r))
    assert result.config["forward"].mode == "default"
    assert set(lost(result)) == {("max-autotune", "wrong_output")}


# --- exported code, after the races ---------------------------------------------------------------


def exported(
    factor: float = 1.0, outcome: str = "ok", eager_s: float = 1e-3, work: Any = None
) -> Recorder:
    """Exported code is so many times as fast as the setting was in its races, against eager."""

    def script(request: Mapping[str, Any]) -> Ending:
        if work is not None:
            work()
        if request["kind"] != "exported":
            return CLEAR(request)
        if outcome != "ok":
            return failed(outcome, "verify", "is off")
        return measured(1.5 * factor, eager_s=eager_s)

    return Recorder(script, probed(**PROBED))


def test_exported_code_runs_once_for_each_phase_in_a_fresh_interpreter(
    target: Path,
) -> None:
    executor = exported()
    result = race(target, executor)
    assert [job.fresh for job, kind, _ in executor.jobs if kind == "exported"] == [True]
    (side,) = executor.of("exported")[0]["sides"]
    assert (
        side["exported"]["code"] == 'model = torch.compile(model, mode="max-autotune")'
    )
    assert side["exported"]["code"] in result.export("python")
    assert side["exported"]["settings"]["phases"]["forward"]
    best = best_of(result)
    assert best.confirmed_processes == 3, "it counts as no set of the race"
    assert best.exported and best.exported.agrees and best.exported.outcome == "ok"
    assert best.exported.speedup
    assert best.exported.speedup.value == pytest.approx(1.5, rel=0.01)
    again = race(target, executor, resume=True)
    assert len(executor.of("exported")) == 1, "a winner that has run is not run again"
    assert best_of(again).exported == best.exported


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"factor": 0.7}, "the exported code gave 1.05× "),
        (
            {"factor": 0.6, "eager_s": 0.6e-3},
            "the exported code gave 0.90×",
        ),  # below eager
        (
            {"outcome": "wrong_output"},
            "did not work in a fresh interpreter: wrong_output (is",
        ),
    ],
)
def test_a_report_warns_of_exported_code_that_does_not_do_what_was_confirmed(
    options: dict[str, Any], said: str, target: Path
) -> None:
    result = race(target, exported(**options))
    best = best_of(result)
    assert result.verdict["forward"] == "faster"
    (warning,) = exported_warning(best)
    assert said in warning
    assert best.exported
    ran = dataclasses.replace(best.exported, agrees=True, speedup=best.speedup)
    best = dataclasses.replace(best, exported=ran)
    assert not list(exported_warning(best))


def test_exported_code_is_no_slower_where_eager_mode_was_faster(target: Path) -> None:
    best = best_of(race(target, exported(0.8, eager_s=0.8e-3)))
    assert best.exported and best.exported.agrees and not list(exported_warning(best))


def test_without_time_exported_code_is_not_run_and_nothing_is_said(
    target: Path,
) -> None:
    clock = Clock()
    executor = exported(work=lambda: clock.work(3.0))
    best = best_of(race(target, executor, budget_s=36.0, clock=clock.monotonic))
    assert best.confirmed_processes and best.exported is None
    assert not executor.of("exported") and not list(exported_warning(best))
