"""What runs alone is tried again too: the probe, repeats of the finalists, checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autocompile.api import tune
from autocompile.execute.executor import Ending, Job
from autocompile.space.space import SearchSpace
from autocompile.testing import FakeExecutor, failed, measured, probed

SPACE = SearchSpace(backends=("inductor",), batch_sizes=(4,))
TRUTH = {"eager": 1.0, "default": 1.2, "max-autotune": 1.5}


def script(request: Mapping[str, Any]) -> Ending:
    is_eager = request["config"]["backend"] == "eager"
    return measured(TRUTH["eager" if is_eager else request["config"]["mode"]])


class Forking(FakeExecutor):
    """Forks trials, unless a job asks for an interpreter of its own."""

    def __init__(self, *args: Any, probes: tuple[Ending, ...] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.jobs: list[Job] = []
        self._probes = list(probes)

    def start(self, job: Job) -> None:
        self.jobs.append(job)
        if job.number == -1 and self._probes:
            self._probe = self._probes.pop(0)
        super().start(job)


def test_a_target_that_cannot_be_forked_is_probed_in_a_fresh_interpreter(target: Path) -> None:
    aborts = dataclasses.replace(failed("crashed", "build", "SIGABRT in build"), doubts=("forked",))
    executor = Forking(script, probes=(aborts, probed()))
    result = tune(target, executor=executor, space=SPACE)
    assert [job.fresh for job in executor.jobs[:2]] == [False, True]
    assert result.verdict["forward"] == "faster"


def test_a_repeat_that_was_ended_from_outside_is_tried_again(target: Path) -> None:
    ended = []

    def unlucky(request: Mapping[str, Any]) -> Ending:
        if "repeats" in request and request["config"]["mode"] == "max-autotune" and not ended:
            ended.append(request)
            return dataclasses.replace(failed("infrastructure", message="killed"), doubts=("x",))
        return script(request)

    executor = Forking(unlucky)
    result = tune(target, executor=executor, space=SPACE)
    assert result.config["forward"].mode == "max-autotune"
    assert ended
    assert result.to_dict()["phases"]["forward"]["best"]["confirmed_processes"] == 3


def test_what_ends_repeats_from_outside_again_and_again_does_not_rule_a_setting_out(
    target: Path,
) -> None:
    unlucky = iter(range(100))

    def often(request: Mapping[str, Any]) -> Ending:
        is_best = "repeats" in request and request["config"]["mode"] == "max-autotune"
        if is_best and next(unlucky) < 2:
            return failed("infrastructure", message="killed")
        return script(request)

    result = tune(target, executor=FakeExecutor(often), space=SPACE)
    assert result.config["forward"].mode == "max-autotune"


def test_a_setting_that_fails_when_it_is_repeated_is_called_that(target: Path) -> None:
    def once(request: Mapping[str, Any]) -> Ending:
        is_compiled = request["config"]["backend"] != "eager"
        return failed("crashed") if "repeats" in request and is_compiled else script(request)

    result = tune(target, executor=FakeExecutor(once), space=SPACE)
    assert result.verdict["forward"] == "keep_eager"
    reason = result.to_dict()["phases"]["forward"]["reason"]
    assert reason.startswith("every setting that worked in the search failed when it was raced")
    assert "× crashed" in reason
