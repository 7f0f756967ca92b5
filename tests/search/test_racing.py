"""The race of the finalists, with scripted trials."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from conftest import Clock

from autocompile.api import tune
from autocompile.execute.executor import Ended, Ending, Event, Job
from autocompile.report.facts import exported_warning, figures
from autocompile.report.live import SilentProgress
from autocompile.space.space import SearchSpace
from autocompile.store.record import AT_WORK, Outcome, Step
from autocompile.testing import FakeExecutor, failed, measured, probed

MODES = ("default", "lite", "max-autotune")
SPACE = SearchSpace(batch_sizes=(4,), fullgraph=(False,), freezing=(False,), modes=MODES)


def with_modes(script: Any, *modes: str, **more: Any) -> FakeExecutor:
    return FakeExecutor(script, probed(modes={m: m for m in modes or MODES}), **more)


def speeds(**truth: float) -> Any:
    def script(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        return measured(truth[request["config"]["mode"].replace("-", "_")])

    return script


CLEAR = speeds(default=1.2, lite=1.0, max_autotune=1.5)


def raced(result: Any) -> Counter[str]:
    return Counter(r.config.mode for r in result.trials if r.role == "confirm")


def test_three_sets_are_enough_where_the_order_is_clear(target: Path) -> None:
    result = tune(target, executor=with_modes(CLEAR), space=SPACE)
    assert raced(result) == {"max-autotune": 3, "default": 3}
    best = result.to_dict()["phases"]["forward"]["best"]
    assert best["confirmed_processes"] == 3
    assert best["speedup_against_default"]["value"] == pytest.approx(1.25, rel=0.01)
    assert result.to_dict()["phases"]["forward"]["confidence"]["decided"]


def test_who_may_still_be_better_gets_more_sets_and_no_more_than_six(target: Path) -> None:
    values = {
        "max-autotune": cycle([1.20, 1.32, 1.26]),
        "default": cycle([1.22, 1.18, 1.31]),
        "lite": cycle([1.0]),
    }

    def uneven(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        return measured(next(values[request["config"]["mode"]]))

    result = tune(target, executor=with_modes(uneven), space=SPACE)
    assert raced(result)["max-autotune"] == 6
    phase = result.to_dict()["phases"]["forward"]
    assert not phase["confidence"]["decided"]
    assert "--resume --budget 5m" in phase["confidence"]["command"]
    assert "may be up to" in phase["confidence"]["open"]


def test_each_batch_size_and_phase_is_raced_the_users_own_first(target: Path) -> None:
    order: list[int] = []

    class Listener(SilentProgress):
        def racing(self, phase: str, batch_size: int | None, sides: int, number: int) -> None:
            order.append(batch_size or 0)

    probe = probed(modes={m: m for m in MODES})
    probe.payload["target"]["own_batch_size"] = {"forward": 4}
    space = SearchSpace(batch_sizes=(1, 4, 16), fullgraph=(False,), freezing=(False,), modes=MODES)
    script = CLEAR
    result = tune(target, executor=FakeExecutor(script, probe), space=space, progress=Listener())
    assert order == [4, 4, 4, 16, 16, 16, 1, 1, 1]
    phase = result.to_dict()["phases"]["forward"]
    assert phase["best"]["batch_size"] == 4, "the report is about the user's own batch size"
    assert [row["confirmed_processes"] for row in phase["by_batch_size"]] == [3, 3, 3]


def test_sets_of_a_slow_host_are_made_up_for_after_every_batch_size_had_three(target: Path) -> None:
    order: list[int] = []

    class Listener(SilentProgress):
        def racing(self, phase: str, batch_size: int | None, sides: int, number: int) -> None:
            order.append(batch_size or 0)

    def slow_at_first(request: Mapping[str, Any]) -> Ending:
        found = CLEAR(request)
        is_slow = 0 < order.count(4) <= 2 and order[-1] == 4
        found.payload["reference_s"] = 1.3 if is_slow else 1.0
        return found

    probe = probed(modes={m: m for m in MODES})
    probe.payload["target"]["own_batch_size"] = {"forward": 4}
    space = SearchSpace(batch_sizes=(1, 4), fullgraph=(False,), freezing=(False,), modes=MODES)
    executor = FakeExecutor(slow_at_first, probe)
    result = tune(target, executor=executor, space=space, progress=Listener())
    assert order == [4, 4, 4, 1, 1, 1, 4, 4]
    best = result.to_dict()["phases"]["forward"]["best"]
    assert (best["confirmed_processes"], best["slow_sets"]) == (3, 2)


class Dies(FakeExecutor):
    """The process of a race dies while the setting with some mode is at work."""

    def __init__(self, mode: str, outcome: str, times: int = 99) -> None:
        script = speeds(default=1.2, lite=1.3, max_autotune=1.5)
        super().__init__(script, probed(modes={m: m for m in MODES}))
        self.mode, self.outcome, self.times = mode, outcome, times
        self.groups: list[list[str]] = []

    def start(self, job: Job) -> None:
        request = json.loads((job.folder / "request.json").read_text())
        if request["kind"] != "race":
            super().start(job)
            return
        self.groups.append([side["config"]["mode"] for side in request["sides"]])
        guilty = [s["number"] for s in request["sides"] if s["config"]["mode"] == self.mode]
        if not guilty or not self.times:
            super().start(job)
            return
        self.times -= 1
        (job.folder / AT_WORK).write_text(f"{guilty[0]:8d}")
        ending = Ending(
            Outcome(self.outcome), Step.MEASURE, f"{self.outcome} in measure", wall_s=1.0
        )
        self._events.append(Ended(job.number, ending))


@pytest.mark.parametrize("outcome", ["crashed", "timeout", "out_of_memory"])
def test_a_crash_or_a_hang_ends_that_candidate_and_not_the_race(target: Path, outcome: str) -> None:
    executor = Dies("max-autotune", outcome)
    # A search that may end early has no need of "lite" beside what is so much faster.
    result = tune(target, executor=executor, space=SPACE, effort="full")
    assert result.config["forward"].mode == "lite"
    assert result.to_dict()["phases"]["forward"]["best"]["confirmed_processes"] >= 3
    lost = [r for r in result.trials if r.role == "confirm" and not r.ok]
    assert [(r.config.mode, r.outcome.value) for r in lost] == [("max-autotune", outcome)]
    assert ["max-autotune"] in executor.groups, "it had a process of its own before it was given up"


def test_who_failed_beside_others_and_not_by_itself_stays_in_the_race(target: Path) -> None:
    executor = Dies("max-autotune", "out_of_memory", times=1)
    result = tune(target, executor=executor, space=SPACE)
    assert result.config["forward"].mode == "max-autotune"
    assert executor.groups.count(["max-autotune"]) >= 3


def test_a_process_that_dies_with_nobody_at_work_ends_the_race_with_a_warning(target: Path) -> None:
    said: list[str] = []

    class Listener(SilentProgress):
        def warning(self, text: str) -> None:
            said.append(text)

    class Broken(FakeExecutor):
        def start(self, job: Job) -> None:
            request = json.loads((job.folder / "request.json").read_text())
            if request["kind"] == "race":
                ending = Ending(Outcome.CRASHED, Step.EAGER, "SIGKILL in eager", wall_s=1.0)
                self._events.append(Ended(job.number, ending))
            else:
                super().start(job)

    script = CLEAR
    executor = Broken(script, probed(modes={m: m for m in MODES}))
    result = tune(target, executor=executor, space=SPACE, progress=Listener())
    assert len(said) == 1
    assert "SIGKILL in eager" in said[0]
    best = result.to_dict()["phases"]["forward"]["best"]
    assert best["confirmed_processes"] == 0
    assert not result.is_faster_by(1.01, "forward")


def test_who_sets_something_for_the_process_runs_by_itself_in_turns(target: Path) -> None:
    def one_thread(request: Mapping[str, Any]) -> Ending:
        if request["config"]["threads"] == 1:
            return measured(1.6)
        return measured(1.0 if request["config"]["backend"] == "eager" else 1.5)

    requests: list[dict[str, Any]] = []

    class Watched(FakeExecutor):
        def start(self, job: Job) -> None:
            requests.append(json.loads((job.folder / "request.json").read_text()))
            super().start(job)

    space = SearchSpace(
        batch_sizes=(4,),
        fullgraph=(False,),
        freezing=(False,),
        modes=("default",),
        threads=(None, 1),
    )
    environment = {**probed().payload["environment"], "threads": 2}
    executor = Watched(one_thread, probed(environment=environment), slots=2)
    result = tune(target, executor=executor, space=space)
    assert result.config["forward"].threads == 1
    races = [r for r in requests if r["kind"] == "race"]
    threads = [[side["config"]["threads"] for side in r["sides"]] for r in races]
    assert [None] in threads
    assert [1] in threads
    assert not any(None in group and 1 in group for group in threads)
    assert all(r["takes_turns"] for r in races)


def test_more_memory_than_a_trial_may_have_is_not_shared(target: Path) -> None:
    def heavy(request: Mapping[str, Any]) -> Ending:
        speed = CLEAR(request)
        payload = {**speed.payload, "peak_memory_bytes": 10**9}
        return dataclasses.replace(speed, payload=payload)

    groups: list[int] = []

    class Watched(FakeExecutor):
        def start(self, job: Job) -> None:
            request = json.loads((job.folder / "request.json").read_text())
            if request["kind"] == "race":
                groups.append(len(request["sides"]))
            super().start(job)

    executor = Watched(heavy, probed(modes={m: m for m in MODES}))
    tune(target, executor=executor, space=SPACE, memory_limit_bytes=3 * 10**9)
    assert set(groups) == {1}


def test_ctrl_c_in_a_race_keeps_the_sets_that_had_ended(target: Path) -> None:
    class Impatient(FakeExecutor):
        def wait(self, timeout_s: float) -> list[Event]:
            if sum("repeats" in r for r in self.requests) > 4 and not self.pressed:
                self.pressed = True
                raise KeyboardInterrupt
            return super().wait(timeout_s)

        pressed = False

    script = CLEAR
    executor = Impatient(script, probed(modes={m: m for m in MODES}))
    stopped = tune(target, executor=executor, space=SPACE)
    assert stopped.interrupted
    assert stopped.to_dict()["phases"]["forward"]["best"]["confirmed_processes"] == 2
    result = tune(target, executor=with_modes(script), resume=True)
    assert result.to_dict()["phases"]["forward"]["best"]["confirmed_processes"] == 3
    assert raced(result)["max-autotune"] == 3, "the sets that were there are not repeated"


def test_where_nothing_can_win_nothing_is_raced(target: Path) -> None:
    result = tune(
        target, executor=with_modes(speeds(default=0.8, lite=0.7, max_autotune=0.6)), space=SPACE
    )
    assert not raced(result)
    assert result.verdict["forward"] == "keep_eager"


def test_a_setting_that_is_wrong_in_a_race_is_not_recommended(target: Path) -> None:
    def liar(request: Mapping[str, Any]) -> Ending:
        if "repeats" in request and request["config"]["mode"] == "max-autotune":
            return failed("wrong_output", "verify", "outputs differ")
        return CLEAR(request)

    result = tune(target, executor=with_modes(liar), space=SPACE)
    assert result.config["forward"].mode == "default"
    lost = [r for r in result.trials if r.role == "confirm" and not r.ok]
    assert {r.outcome for r in lost} == {Outcome.WRONG_OUTPUT}


# --- exported code, after the races ---------------------------------------------------------------


def exported(factor: float = 1.0, outcome: str = "ok", eager_s: float = 1e-3) -> Any:
    """Exported code is so many times as fast as the setting was in its races, against eager."""

    def script(request: Mapping[str, Any]) -> Ending:
        if request["kind"] != "exported":
            return CLEAR(request)
        asked.append(dict(request))
        return (
            measured(1.5 * factor, eager_s=eager_s)
            if outcome == "ok"
            else failed(outcome, "verify", "is off")
        )

    asked: list[dict[str, Any]] = []
    script.asked = asked  # type: ignore[attr-defined]
    return script


def test_exported_code_runs_once_for_each_phase_in_a_fresh_interpreter(target: Path) -> None:
    fresh: list[bool] = []

    class Watched(FakeExecutor):
        def start(self, job: Job) -> None:
            if json.loads((job.folder / "request.json").read_text())["kind"] == "exported":
                fresh.append(job.fresh)
            super().start(job)

    script = exported()
    executor = Watched(script, probed(modes={m: m for m in MODES}))
    result = tune(target, executor=executor, space=SPACE)
    (request,) = script.asked
    assert fresh == [True]
    (side,) = request["sides"]
    assert side["exported"]["code"] == 'model = torch.compile(model, mode="max-autotune")'
    assert side["exported"]["code"] in result.export("python")
    assert side["exported"]["settings"]["phases"]["forward"]
    best = result.to_dict()["phases"]["forward"]["best"]
    assert best["confirmed_processes"] == 3, "it counts as no set of the race"
    assert best["exported"]["agrees"] and best["exported"]["outcome"] == "ok"
    assert best["exported"]["speedup"]["value"] == pytest.approx(1.5, rel=0.01)
    again = tune(target, executor=executor, resume=True)
    assert len(script.asked) == 1, "a winner that has run is not run again"
    assert again.to_dict()["phases"]["forward"]["best"]["exported"] == best["exported"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (exported(0.7), "the exported code gave 1.05× "),
        (exported(outcome="wrong_output"), "did not work in a fresh interpreter: wrong_output (is"),
    ],
)
def test_a_report_warns_of_exported_code_that_does_not_do_what_was_confirmed(
    script: Any, said: str, target: Path
) -> None:
    report = tune(target, executor=with_modes(script), space=SPACE).to_dict()
    best = report["phases"]["forward"]["best"]
    assert report["phases"]["forward"]["verdict"] == "faster" and not best["exported"]["agrees"]
    (warning,) = exported_warning(best)
    assert said in warning
    assert "exported code" not in " ".join(figures(best))
    best["exported"] |= {"agrees": True, "speedup": best["speedup"]}
    assert "exported code: 1.50×, right" in list(figures(best))
    assert exported_warning(best) == []


def test_exported_code_is_no_slower_where_eager_mode_was_faster(target: Path) -> None:
    script = exported(0.8, eager_s=0.8e-3)
    best = tune(target, executor=with_modes(script), space=SPACE).to_dict()["phases"]["forward"][
        "best"
    ]
    assert best["exported"]["agrees"] and exported_warning(best) == []
    told = "exported code: 1.20×, right; calls as fast, eager mode was faster in that process"
    assert told in list(figures(best))


def test_exported_code_that_is_slower_than_eager_is_told_whatever_its_calls_take(
    target: Path,
) -> None:
    script = exported(0.6, eager_s=0.6e-3)
    result = tune(target, executor=with_modes(script), space=SPACE)
    (warning,) = exported_warning(result.to_dict()["phases"]["forward"]["best"])
    assert "the exported code gave 0.90×" in warning


def test_without_time_exported_code_is_not_run_and_nothing_is_said(target: Path) -> None:
    script, clock = exported(), Clock()

    def slow(request: Mapping[str, Any]) -> Ending:
        clock.work(3.0)
        return script(request)

    result = tune(
        target, executor=with_modes(slow), space=SPACE, budget_s=36.0, clock=clock.monotonic
    )
    best = result.to_dict()["phases"]["forward"]["best"]
    assert best["confirmed_processes"] and best["exported"] is None
    assert not script.asked and not exported_warning(best)
