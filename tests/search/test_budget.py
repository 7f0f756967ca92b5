"""The budget is the whole run: searching, racing and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Clock
from fakes import FakeExecutor, measured, probed
from scripts import target_with

import autocompile
from autocompile.api import tune
from autocompile.errors import UsageError
from autocompile.execute.executor import Ending, Event, Job
from autocompile.search.jobs import Budget
from autocompile.space.space import Plan, SearchSpace

SPACE = SearchSpace(batch_sizes=(1, 4, 16), fullgraph=(False,))


def test_an_effort_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="'huge' is none of quick, normal, full"):
        Plan("net.py", effort="huge")


def test_a_part_is_kept_back_for_racing_and_no_more_than_is_needed() -> None:
    clock = Clock()
    budget = Budget(100.0, clock=clock.monotonic)
    assert budget.for_search_s(races_s=10.0) == pytest.approx(84, abs=1)
    assert budget.for_search_s(races_s=80.0) == pytest.approx(54, abs=1)
    clock.work(70)
    assert budget.for_search_s(races_s=80.0) < 0
    assert budget.left_s == pytest.approx(24, abs=1), "5 % are kept for exported code"
    budget.release()
    assert budget.left_s == pytest.approx(29, abs=1)
    assert Budget(None, clock=clock.monotonic).left_s == math.inf


class Working(FakeExecutor):
    """Trials take the time that they say."""

    def __init__(
        self, clock: Clock, trial_s: float, set_s: float, speedup: float = 1.5
    ) -> None:
        self.clock, self.trial_s, self.set_s, self.speedup = (
            clock,
            trial_s,
            set_s,
            speedup,
        )
        modes = {m: m for m in ("default", *(f"mode-{n}" for n in range(6)))}
        super().__init__(self.work, probed(modes=modes))

    def work(self, request: Mapping[str, Any]) -> Ending:
        self.clock.work(self.set_s / 3 if "repeats" in request else self.trial_s)
        return measured(
            1.0 if request["config"]["backend"] == "eager" else self.speedup
        )


@pytest.mark.parametrize("budget_s", [30.0, 120.0, 600.0])
@pytest.mark.parametrize("speedup", [1.5, 0.7])
def test_a_run_is_kept_within_its_budget(
    target: Path, budget_s: float, speedup: float
) -> None:
    clock = Clock()
    executor = Working(clock, trial_s=3.0, set_s=6.0, speedup=speedup)
    result = tune(
        target, executor=executor, space=SPACE, budget_s=budget_s, clock=clock.monotonic
    )
    assert clock.monotonic() <= 1.1 * budget_s + 3.0
    assert result.verdict["forward"] == ("faster" if speedup > 1 else "keep_eager")


class Stuck(Working):
    """The sixth trial does not end by itself."""

    stuck: int | None = None

    def start(self, job: Job) -> None:
        super().start(job)
        if self.stuck is None and len(self.requests) == 6:
            self.stuck = job.number
            self._events.pop()

    def wait(self, timeout_s: float) -> list[Event]:
        if not self._events:
            self.clock.work(timeout_s)
        return super().wait(timeout_s)


def test_what_does_not_end_leaves_the_races_their_time(target: Path) -> None:
    clock = Clock()
    executor = Stuck(clock, trial_s=3.0, set_s=3.0)
    executor.slots = 2
    space = SearchSpace(batch_sizes=(4,), fullgraph=(False,))
    result = tune(
        target, executor=executor, space=space, budget_s=120.0, clock=clock.monotonic
    )
    (ended,) = [r for r in result.trials if r.outcome.value == "interrupted"]
    assert ended.number == executor.stuck
    assert not result.interrupted
    (row,) = result.to_dict()["phases"]["forward"]["by_batch_size"]
    assert row["confirmed_processes"] >= 3
    assert clock.monotonic() <= 1.1 * 120.0
    notes = result.to_dict()["phases"]["forward"]["notes"]
    assert "1 trial was stopped before the end" in str(notes)
    again = tune(
        target, executor=Working(Clock(), 3.0, 3.0), run_dir=result.run_dir, resume=True
    )
    assert any(r.ok and r.config == ended.config for r in again.trials), (
        "it is tried again"
    )


def test_a_trial_is_ended_for_the_races_that_are_needed_and_not_much_before() -> None:
    clock = Clock()
    budget = Budget(100.0, clock=clock.monotonic)
    clock.work(83)
    assert not budget.is_over(races_s=10.0)
    clock.work(5)
    assert budget.is_over(races_s=10.0)
    clock.work(15)
    assert not budget.is_over()
    assert budget.is_over(races_s=0.0)


def test_more_budget_searches_deeper_and_resuming_goes_on(target: Path) -> None:
    tried = []
    for budget_s in (60.0, 200.0):
        clock = Clock()
        executor = Working(clock, trial_s=3.0, set_s=6.0)
        options: dict[str, Any] = {
            "budget_s": budget_s,
            "clock": clock.monotonic,
            "space": SPACE,
        }
        result = tune(
            target, executor=executor, run_dir=f"run-{budget_s:.0f}", **options
        )
        tried.append(result.to_dict()["phases"]["forward"]["tried"])
    assert tried[1] > tried[0]
    clock = Clock()
    options |= {"clock": clock.monotonic, "run_dir": "run-60", "resume": True}
    result = tune(target, executor=Working(clock, 3.0, 6.0), **options)
    assert result.to_dict()["phases"]["forward"]["tried"] > tried[0]


def test_both_phases_share_one_study_and_none_waits_for_the_other(target: Path) -> None:
    probe = target_with(phases=["forward", "optimizer_step"], optimizers=["fused"])
    executor = FakeExecutor(lambda request: measured(1.2), probe)
    result = tune(target, executor=executor, space=SPACE, trials=8)
    assert {r["phase"] for r in executor.requests} == {"forward", "optimizer_step"}
    assert isinstance(result, autocompile.Result)
    first = [r for r in executor.requests if r["config"]["optimizer"] == "fused"]
    assert executor.requests.index(first[0]) < 8, (
        "eager's own fused step needs no compiler"
    )
