"""What is said of a phase of a run that is not through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeExecutor, measured, probed
from scripts import tune
from typer.testing import CliRunner

from autocompile.api import load
from autocompile.cli import commands as cli
from autocompile.execute.executor import Ending, Job
from autocompile.report.build import state_of
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.files import write_json
from autocompile.store.record import Outcome, Record, RunFolder, Step

SPACE = SearchSpace(backends=("inductor",), batch_sizes=(4,))


def record(
    config: CompileConfig, outcome: Outcome = Outcome.OK, phase: str = "forward"
) -> Record:
    return Record(0, phase, config, 4, outcome=outcome, step=Step.EXIT)


@pytest.mark.parametrize(
    ("records", "live", "stopped"),
    [
        ([], "not started", "not started"),
        ([record(EAGER, phase="train_step")], "not started", "not started"),
        ([record(EAGER, Outcome.INTERRUPTED)], "not started", ""),
        ([record(EAGER)], "no compiled setting has finished", ""),
        ([record(EAGER), record(DEFAULT_INDUCTOR)], "", ""),
        ([record(EAGER), record(DEFAULT_INDUCTOR, Outcome.CRASHED)], "", ""),
    ],
)
def test_a_phase_is_judged_when_a_compiled_setting_has_ended(
    records: list[Record], live: str, stopped: str
) -> None:
    assert state_of("forward", records, running=True) == live
    assert state_of("forward", records, running=False) == stopped


def two_phases() -> Ending:
    payload = probed().payload["target"]
    return probed(target={**payload, "phases": ["forward", "train_step"]})


def script(request: Mapping[str, Any]) -> Ending:
    return measured(
        1.0 if request["config"]["backend"] == "eager" else 1.5, noise=0.005
    )


def shown() -> tuple[dict[str, Any], list[str]]:
    done = CliRunner().invoke(cli.app, ["show"])
    assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.stdout.splitlines()]
    return load("last").to_dict()["phases"], lines


def test_a_live_run_says_what_has_not_begun(target: Path) -> None:
    seen = []

    def looking(request: Mapping[str, Any]) -> Ending:
        if len(seen) < 2:
            seen.append(shown())
        return script(request)

    tune(target, executor=FakeExecutor(looking, two_phases()), space=SPACE)
    (first, lines), (second, _) = seen
    assert {name: phase["state"] for name, phase in first.items()} == {
        "forward": "not started",
        "train_step": "not started",
    }
    assert (
        sum("no result yet   –            not started" in line for line in lines) == 2
    )
    assert "failed" not in "".join(lines)
    states = {phase["state"] for phase in second.values()}
    assert "no compiled setting has finished" in states
    phases, lines = shown()
    assert [phase["state"] for phase in phases.values()] == ["", ""]
    assert "no result" not in "".join(lines)


def test_a_stopped_run_says_what_has_not_begun(target: Path) -> None:
    class PressesCtrlC(FakeExecutor):
        def start(self, job: Job) -> None:
            super().start(job)
            if len(self.requests) == 1:
                raise KeyboardInterrupt

    result = tune(target, executor=PressesCtrlC(script, two_phases()), space=SPACE)
    assert result.interrupted
    reasons = [phase["reason"] for phase in result.to_dict()["phases"].values()]
    assert "not started" in reasons
    assert "not started" in Path(result.run_dir, "report.html").read_text("utf-8")


def test_what_was_measured_in_the_algorithm_is_kept_with_the_run(target: Path) -> None:
    result = tune(target, executor=FakeExecutor(script, two_phases()), space=SPACE)
    assert "in_algorithm" not in load("last").to_dict()
    figures = {"steps_per_s": {"gain": {"value": 1.2, "low": 1.1, "high": 1.3}}}
    write_json(RunFolder(result.run_dir).in_algorithm, figures)
    assert load("last").to_dict()["in_algorithm"] == figures
