"""The budget is the whole run: probe, search, races, exported code and the report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Clock
from fakes import FakeExecutor, failed, measured, probed
from scripts import Timed, is_eager, is_raced, target_with, tune

import autocompile
from autocompile.errors import TargetError, UsageError
from autocompile.execute.executor import Ending, Job
from autocompile.request import Request
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.record import Outcome

SPACE = SearchSpace(batch_sizes=(1, 4, 16), fullgraph=(False,))
MODES = ("default", *(f"mode-{n}" for n in range(6)))
PROBED = probed(modes={m: m for m in MODES})


def test_an_effort_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        UsageError, match="'huge', and takes one of quick, normal, full"
    ):
        Request("net.py", effort="huge")


def working(clock: Clock, trial_s: float, set_s: float, speedup: float = 1.5) -> Timed:
    """Trials and sets take so many seconds."""

    def work(request: Mapping[str, Any]) -> Ending:
        ending = measured(1.0 if is_eager(request) else speedup)
        wall_s = set_s / 3 if is_raced(request) else trial_s
        return dataclasses.replace(ending, wall_s=wall_s)

    return Timed(work, clock, PROBED)


def ran(target: Path, executor: Timed, budget_s: float, **options: Any) -> Any:
    clock = executor.clock
    return tune(
        target,
        executor=executor,
        budget_s=budget_s,
        clock=clock.monotonic,
        **{"space": SPACE, **options},
    )


@pytest.mark.parametrize("budget_s", [30.0, 120.0, 600.0])
@pytest.mark.parametrize(("trial_s", "set_s"), [(3.0, 6.0), (4.3, 1.7)])
@pytest.mark.parametrize("speedup", [1.5, 0.7])
def test_a_run_ends_within_its_budget(
    target: Path, budget_s: float, trial_s: float, set_s: float, speedup: float
) -> None:
    executor = working(Clock(), trial_s, set_s, speedup)
    result = ran(target, executor, budget_s)
    assert executor.clock.monotonic() <= budget_s
    assert result.verdict["forward"] == ("faster" if speedup > 1 else "keep_eager")


def test_what_does_not_end_leaves_the_races_their_time(target: Path) -> None:
    executor = working(Clock(), trial_s=3.0, set_s=1.5)
    executor.slots = 2
    executor._hangs = lambda request: request["number"] == 6
    space = SearchSpace(batch_sizes=(4,), fullgraph=(False,))
    result = ran(target, executor, 120.0, space=space)
    (ended,) = [r for r in result.trials if r.outcome is Outcome.INTERRUPTED]
    assert ended.number == 6 and executor.cancelled == [6]
    assert not result.interrupted
    best = result.report.phases["forward"].answer.best
    assert best is not None and best.confirmed_processes >= 3
    assert executor.clock.monotonic() <= 120.0
    notes = result.to_dict()["phases"]["forward"]["notes"]
    assert "1 trial was stopped before the end" in str(notes)
    again = working(Clock(), 3.0, 3.0)
    again = tune(target, executor=again, run_dir=result.run_dir, resume=True)
    assert any(r.ok and r.config == ended.config for r in again.trials), (
        "it is tried again"
    )


def test_a_race_that_does_not_end_is_cut_at_the_end_of_the_budget(target: Path) -> None:
    executor = working(Clock(), trial_s=3.0, set_s=3.0)
    executor._hangs = lambda request: request["kind"] == "race"
    result = ran(target, executor, 90.0)
    assert executor.clock.monotonic() <= 90.0
    assert not result.interrupted and result.trials


# The probe ----------------------------------------------------------------------------------------


def test_a_target_that_never_ends_its_import_ends_with_the_budget(target: Path) -> None:
    executor = working(Clock(), 3.0, 3.0)
    executor._hangs = lambda request: request["kind"] == "probe"
    with pytest.raises(TargetError, match=r"took the whole budget of 60 s") as error:
        ran(target, executor, 60.0)
    assert executor.clock.monotonic() <= 60.0
    said = error.value.text()
    assert "log.txt" in said and "--budget" in said and not executor.requests


def test_nor_does_its_second_try_last_longer(target: Path) -> None:
    class Forking(Timed):
        """The fork crashes after 40 s, and the fresh interpreter never ends."""

        def start(self, job: Job) -> None:
            crash = dataclasses.replace(failed("crashed"), wall_s=40.0)
            self._probe = dataclasses.replace(crash, doubts=("forked",))
            self._hangs = lambda request: job.fresh
            super().start(job)

    executor = Forking(lambda request: measured(1.0), Clock())
    with pytest.raises(TargetError, match="took the whole budget of 60 s"):
        ran(target, executor, 60.0)
    assert 50.0 < executor.clock.monotonic() <= 60.0


# The search goes on -------------------------------------------------------------------------------


def spaces(result: autocompile.Result) -> Any:
    run = json.loads(Path(result.run_dir, "run.json").read_text())
    return run["spaces"]["forward"]


def test_after_a_moment_in_which_nothing_fits_the_search_goes_on(target: Path) -> None:
    """Four trials end together after 50 s; until the last of them has, what begins would wait."""
    modes = ("default", *(f"mode-{n}" for n in range(30)))

    def work(request: Mapping[str, Any]) -> Ending:
        ending = measured(1.0 if is_eager(request) else 0.98)
        steps = {"compile": 4.0, "measure": 6.0}
        return dataclasses.replace(ending, wall_s=10.0, step_s=steps)

    clock = Clock()
    executor = Timed(work, clock, probed(modes={m: m for m in modes}), slots=4)
    space = SearchSpace(batch_sizes=(4,), fullgraph=(False,), freezing=(False,))
    ran(target, executor, 81.0, space=space)
    begun = [r for r in executor.requests if not is_raced(r)]
    assert len(begun) > 2 + 4, "eager, plain torch.compile(), four, and more"
    assert clock.monotonic() <= 81.0


def test_what_races_do_not_take_goes_to_the_search(target: Path) -> None:
    """The compiles of these trials let races look ten times as long as they are."""

    def work(request: Mapping[str, Any]) -> Ending:
        speedup = 1.0 if is_eager(request) else 1.3
        if request["config"]["mode"] == "default":
            speedup = 1.0 if is_eager(request) else 1.5
        wall_s = 0.5 if is_raced(request) else 12.0
        ending = measured(speedup)
        return dataclasses.replace(ending, wall_s=wall_s, step_s={"compile": 60.0})

    clock = Clock()
    executor = Timed(work, clock, PROBED)
    space = SearchSpace(batch_sizes=(4,), fullgraph=(False,), freezing=(False,))
    result = ran(target, executor, 100.0, space=space)
    tried = [r for r in result.trials if r.role == "search"]
    assert clock.monotonic() <= 100.0
    assert 100.0 - clock.monotonic() < 30.0 or not spaces(result)["rest"]
    assert len(tried) >= 6


def compiling_slowly(clock: Clock, operators: int | None = None) -> Timed:
    """Eager mode takes 5 seconds, and whatever compiles takes 60."""

    def work(request: Mapping[str, Any]) -> Ending:
        wall_s = 5.0 if is_eager(request) or is_raced(request) else 60.0
        ending = measured(1.0 if is_eager(request) else 1.5, compile_s=wall_s)
        return dataclasses.replace(ending, wall_s=wall_s)

    payload = probed().payload["target"]
    known = {"operators": {"forward": operators}}
    return Timed(
        work, clock, probed(modes=PROBED.payload["modes"], target=payload | known)
    )


ONE_SIZE = SearchSpace(batch_sizes=(4,), fullgraph=(False,), freezing=(False,))


@pytest.mark.parametrize(("effort", "least"), [("quick", 2), ("normal", 4)])
def test_an_effort_takes_longer_where_too_little_would_be_compared(
    target: Path, effort: str, least: int, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    executor = compiling_slowly(clock)
    result = tune(
        target, executor=executor, effort=effort, clock=clock.monotonic, space=ONE_SIZE
    )
    tried = [r for r in result.trials if r.role == "search" and not r.config.is_eager]
    assert sum(r.outcome is Outcome.OK for r in tried) >= least
    assert clock.monotonic() <= 6 * {"quick": 90.0, "normal": 300.0}[effort]
    assert "trials take long here" in capsys.readouterr().err


def test_a_quick_run_of_a_small_model_is_no_longer_than_it_says(target: Path) -> None:
    """Two phases, whose many settings and races want more time than there is."""
    clock = Clock()
    executor = working(clock, trial_s=3.0, set_s=9.0)
    payload = probed().payload["target"]
    phases = {"phases": ["forward", "optimizer_step"]}
    executor._probe = probed(modes=PROBED.payload["modes"], target=payload | phases)
    tune(target, executor=executor, effort="quick", clock=clock.monotonic)
    assert clock.monotonic() <= 90.0


def test_cheap_settings_of_one_phase_make_no_run_longer_for_the_other(
    target: Path,
) -> None:
    """What the effort promises of each phase is tried before what is cheap in one."""

    def work(request: Mapping[str, Any]) -> Ending:
        is_slow = request["phase"] == "optimizer_step" and not is_eager(request)
        wall_s = 3.0 if is_raced(request) or not is_slow else 25.0
        ending = measured(1.0 if is_eager(request) else 1.5, compile_s=wall_s / 2)
        return dataclasses.replace(ending, wall_s=wall_s)

    clock = Clock()
    payload = probed().payload["target"] | {"phases": ["forward", "optimizer_step"]}
    executor = Timed(work, clock, probed(modes=PROBED.payload["modes"], target=payload))
    result = tune(
        target,
        executor=executor,
        effort="quick",
        clock=clock.monotonic,
        space=ONE_SIZE,
    )
    assert clock.monotonic() <= 90.0
    compiled = [
        r.phase
        for r in result.trials
        if r.role == "search" and r.ok and not r.config.is_eager and r.wall_s > 0
    ]
    assert min(compiled.count(p) for p in ("forward", "optimizer_step")) >= 2


def test_of_many_operators_it_is_said_before_anything_is_compiled(
    target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    tune(
        target,
        executor=compiling_slowly(clock, operators=2000),
        effort="quick",
        clock=clock.monotonic,
        space=ONE_SIZE,
        progress="plain",
    )
    said = capsys.readouterr().err
    assert said.index("trials take long here") < said.index("plain torch.compile()")


def test_a_budget_is_never_made_longer(target: Path) -> None:
    clock = Clock()
    ran(target, compiling_slowly(clock), 90.0, space=ONE_SIZE)
    assert clock.monotonic() <= 90.0


def test_no_setting_stays_untried_for_races_of_other_batch_sizes(target: Path) -> None:
    """Three sets at each of three sizes take 27 of 90 seconds; the answer needs 9 of them."""
    clock = Clock()
    result = ran(target, working(clock, trial_s=3.0, set_s=2.25), 90.0)
    tried = [r for r in result.trials if r.role == "search" and r.wall_s > 0]
    assert len(tried) >= 22
    (answer,) = (phase.answer for phase in result.report.phases.values())
    assert answer.best.confirmed_processes >= 3
    assert clock.monotonic() <= 90.0


def test_an_eager_mode_that_fails_in_one_phase_does_not_end_the_search_of_another(
    target: Path,
) -> None:
    probe = target_with(phases=["forward", "optimizer_step"])
    probe = dataclasses.replace(
        probe, payload={**probe.payload, "modes": {m: m for m in MODES}}
    )

    def work(request: Mapping[str, Any]) -> Ending:
        if is_eager(request) and request["phase"] == "optimizer_step":
            return failed("runtime_error", "eager", "the seventh step raised")
        return measured(1.0 if is_eager(request) else 1.2)

    executor = Timed(work, Clock(), probe)
    space = SearchSpace(batch_sizes=(4,), fullgraph=(False,), freezing=(False,))
    result = ran(target, executor, 300.0, space=space)
    forward = {r.config.mode for r in result.trials if r.phase == "forward"}
    assert forward == {*MODES}
    compiled = [r for r in executor.requests if not is_eager(r)]
    assert {r["phase"] for r in compiled} == {"forward"}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_optunas_samplers_end_in_time_too_and_cannot_say_what_is_left(
    target: Path, sampler: str
) -> None:
    executor = working(Clock(), trial_s=9.0, set_s=3.0)
    result = ran(target, executor, 100.0, sampler=sampler)
    assert executor.clock.monotonic() <= 100.0
    assert not executor.cancelled, "nothing begins that would not end in time"
    assert spaces(result)["rest"] is None
    assert spaces(result)["unseen"] == [] or spaces(result)["untried"]


def test_families_that_the_time_was_too_short_for_are_named(target: Path) -> None:
    backends = {"inductor": "", "onnxrt": ""}
    probe = probed(backends=backends, all_backends=[*backends])

    def work(request: Mapping[str, Any]) -> Ending:
        wall_s = 30.0 if request["config"]["backend"] == "onnxrt" else 3.0
        ending = measured(1.0 if is_eager(request) else 1.2)
        return dataclasses.replace(ending, wall_s=wall_s)

    space = SearchSpace(batch_sizes=(4,), fullgraph=(False,), freezing=(False,))
    names = []
    for budget_s in (15.0, 400.0):
        executor = Timed(work, Clock(), probe)
        result = ran(target, executor, budget_s, space=space, run_dir=f"b{budget_s}")
        names.append(spaces(result)["unseen"])
    assert "onnxrt" in names[0] and names[1] == []


def test_more_budget_searches_deeper_and_resuming_goes_on(target: Path) -> None:
    tried = []
    for budget_s in (60.0, 200.0):
        clock = Clock()
        executor = working(clock, trial_s=3.0, set_s=6.0)
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
    result = tune(target, executor=working(clock, 3.0, 6.0), **options)
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


# What moves the end of a run -----------------------------------------------------------------------


def on_a_gpu(
    clock: Clock,
    wall_s: Mapping[str, float],
    set_s: float,
    operators: int | None = None,
    probe_s: float = 0.0,
) -> Timed:
    """A training step with four slots, whose trials take so long by scope and kind."""

    def kind_of(config: Mapping[str, Any]) -> str:
        if config["backend"] == "eager":
            return "eager"
        return "step" if config["scope"] == "step" else config["mode"]

    def work(request: Mapping[str, Any]) -> Ending:
        kind = kind_of(request["config"])
        speedup = {"eager": 1.0, "default": 1.2, "reduce-overhead": 2.6, "step": 3.3}
        took_s = set_s / 3 if is_raced(request) else wall_s.get(kind, 300.0)
        ending = measured(speedup.get(kind, 1.1), compile_s=took_s / 2)
        steps = {"compile": took_s / 2, "verify": took_s / 3}
        return dataclasses.replace(ending, wall_s=took_s, step_s=steps)

    payload = probed().payload
    known = {"phases": ["train_step"], "optimizers": ["fused"]}
    known |= {"operators": {"train_step": operators}}
    gpu = payload["environment"] | {"device": "cuda", "device_memory_bytes": 80 * 10**9}
    modes = {"default": "default", "reduce-overhead": "reduce-overhead"}
    probe = probed(modes=modes, target=payload["target"] | known, environment=gpu)
    probe = dataclasses.replace(probe, wall_s=probe_s)
    return Timed(work, clock, probe, slots=4)


def quickly(target: Path, executor: Timed, clock: Clock) -> Any:
    """The result of a quick run of the step at one batch size."""
    return tune(
        target,
        executor=executor,
        effort="quick",
        clock=clock.monotonic,
        space=SearchSpace(batch_sizes=(4,), fullgraph=(False,)),
    )


def test_races_wait_for_a_trial_that_promises_more_and_has_nearly_ended(
    target: Path,
) -> None:
    """Two settings have been compared before the whole step, of which most is expected."""
    clock = Clock()
    walls = {"eager": 8.0, "default": 47.0, "reduce-overhead": 48.0, "step": 60.0}
    executor = on_a_gpu(clock, walls, set_s=24.0)
    result = quickly(target, executor, clock)
    best = result.report.phases["train_step"].answer.best
    assert best is not None and best.config.scope == "step"
    assert clock.monotonic() <= 1.6 * 90.0


def test_what_is_compared_first_begins_together_although_it_may_take_long(
    target: Path,
) -> None:
    """By its operators a compile takes 72 s, and the probe has taken 41 of the 90."""
    clock = Clock()
    walls = {"eager": 9.0, "default": 50.0, "reduce-overhead": 52.0}
    executor = on_a_gpu(clock, walls, 24.0, operators=3094, probe_s=41.0)
    result = quickly(target, executor, clock)
    best = result.report.phases["train_step"].answer.best
    assert best is not None and best.config.mode == "reduce-overhead"
    assert clock.monotonic() < 41 + 9 + 50 + 52


def test_eager_mode_that_takes_longer_than_expected_is_not_begun_again(
    target: Path,
) -> None:
    clock = Clock()
    walls = {"eager": 60.0, "default": 50.0, "reduce-overhead": 52.0}
    executor = on_a_gpu(clock, walls, set_s=24.0, operators=3094)
    result = quickly(target, executor, clock)
    best = result.report.phases["train_step"].answer.best
    assert best is not None and best.config.mode == "reduce-overhead"
    assert not executor.cancelled


def test_a_first_set_may_take_longer_than_the_run_was_said_to(target: Path) -> None:
    clock = Clock()
    walls = {"eager": 20.0, "default": 45.0, "reduce-overhead": 45.0, "step": 45.0}
    executor = on_a_gpu(clock, walls, set_s=75.0)
    result = quickly(target, executor, clock)
    assert result.verdict["train_step"] == "faster", "cut off, nothing would be known"
