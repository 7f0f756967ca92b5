"""What is said of a phase of a run that is not through."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeExecutor, failed, measured, probed
from scripts import tune
from typer.testing import CliRunner

from autocompile.api import Parts, load, tune_with
from autocompile.cli import commands as cli
from autocompile.execute.executor import Ending, Job
from autocompile.request import Request
from autocompile.result import Result
from autocompile.settings.searchspace import SearchSpace
from autocompile.settings.tuned import Tuned
from autocompile.store.files import write_json
from autocompile.store.record import RunFolder

SPACE = SearchSpace(backends=("inductor",), batch_sizes=(4,))


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
    answers = {name: phase["answer"] for name, phase in first.items()}
    assert {(a["verdict"], a["reason"]) for a in answers.values()} == {
        ("unknown", "not started")
    }
    assert (
        sum("no result yet   –            not started" in line for line in lines) == 2
    )
    assert "failed" not in "".join(lines)
    reasons = {phase["answer"]["reason"] for phase in second.values()}
    assert "no compiled setting has ended yet" in reasons
    phases, lines = shown()
    assert {phase["answer"]["verdict"] for phase in phases.values()} == {"faster"}
    assert "no result" not in "".join(lines)


@pytest.mark.parametrize("asked", [None, ("none", "bfloat16")])
def test_a_precision_that_would_bring_much_is_named_unless_it_was_asked_for(
    target: Path, asked: tuple[str, ...] | None
) -> None:
    payload = probed().payload["target"]
    gain = {"option": "--autocast bfloat16", "speedup": 2.13, "change": 0.004}
    probe = probed(target={**payload, "other_numbers": {"forward": [gain]}})
    space = dataclasses.replace(SPACE, autocast=asked)
    tune(target, executor=FakeExecutor(script, probe), space=space)
    phases, lines = shown()
    said = [line for line in lines if line.startswith("Numbers ")]
    if asked:
        assert not said
        assert "other_numbers" not in phases["forward"]
    else:
        assert phases["forward"]["other_numbers"] == [gain]
        (line,) = said
        assert "2.1× as fast with --autocast bfloat16" in line
        assert "0.4 % off" in line


def test_a_stopped_run_says_what_has_not_begun(target: Path) -> None:
    class PressesCtrlC(FakeExecutor):
        def start(self, job: Job) -> None:
            super().start(job)
            if len(self.requests) == 1:
                raise KeyboardInterrupt

    result = tune(target, executor=PressesCtrlC(script, two_phases()), space=SPACE)
    assert result.interrupted
    phases = result.to_dict()["phases"].values()
    assert {phase["answer"]["verdict"] for phase in phases} == {"unknown"}
    assert any("not started" in phase["answer"]["reason"] for phase in phases)
    assert "not started" in Path(result.run_dir, "report.html").read_text("utf-8")


class Killed(BaseException):
    """The tuner dies where it stands."""


def killed_after(requests: int) -> FakeExecutor:
    class Dies(FakeExecutor):
        def start(self, job: Job) -> None:
            if len(self.requests) >= requests:
                raise Killed
            super().start(job)

    return Dies(script)


def test_after_a_kill_nothing_is_sure_and_what_was_not_tried_is_known(
    target: Path,
) -> None:
    """Three sets of the best have ended, and the run has not."""
    with contextlib.suppress(Killed):
        tune(target, executor=killed_after(17), space=SPACE)
    phase = load("last").to_dict()["phases"]["forward"]
    assert phase["answer"]["verdict"] == "faster"
    assert phase["answer"]["best"]["confirmed_processes"] == 3
    assert phase["answer"]["confidence"] == "open"
    assert phase["answer"]["why"] == "the run was stopped before its end"
    assert phase["listed"] == 9, "as many as there were to try"


def test_a_finished_run_that_is_resumed_and_killed_is_not_finished(
    target: Path,
) -> None:
    first = tune(target, executor=FakeExecutor(script), space=SPACE, trials=2)
    assert not first.interrupted
    with contextlib.suppress(Killed):
        tune(target, executor=killed_after(1), resume=True)
    again = load("last")
    assert again.interrupted
    assert again.report.phases["forward"].answer.confidence != "high"
    (row,) = json.loads(CliRunner().invoke(cli.app, ["list", "--json"]).stdout)
    assert row["state"] == "interrupted"


def test_the_batch_size_of_the_answer_is_settled_before_the_search(
    target: Path,
) -> None:
    """A smaller one is faster in samples per second, and the search goes for the largest."""
    sizes = []

    def small_is_fast(request: Mapping[str, Any]) -> Ending:
        sizes.append(RunFolder("runs/net-0001").read_run()["batch_sizes"])
        eager_s = 1e-3 if request["batch_size"] == 4 else 9e-3
        speedup = 1.0 if request["config"]["backend"] == "eager" else 1.5
        return measured(speedup, noise=0.005, eager_s=eager_s)

    space = SearchSpace(backends=("inductor",), batch_sizes=(4, 16))
    result = tune(target, executor=FakeExecutor(small_is_fast), space=space)
    assert sizes[0] == {"forward": 16}
    answer = result.report.phases["forward"].answer
    assert answer.batch_size == 16
    tuned = Tuned.from_report(result.report)
    choice = tuned.at("forward")
    assert choice is not None and choice.batch_size == 16
    assert result.best["forward"].batch_size == 16


def test_without_an_answer_the_command_ends_with_1_and_the_file_says_unknown(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_eager(request: Mapping[str, Any]) -> Ending:
        if request["config"]["backend"] == "eager":
            return measured(1.0)
        return failed("interrupted", "compile", "the time was over")

    def tuned(request: Request, parts: Parts) -> Result:
        executor = FakeExecutor(only_eager)
        few = dataclasses.replace(request, space=SPACE, trials=4)
        return tune_with(few, Parts(executor, "none"))

    monkeypatch.setattr("autocompile.api.tune_with", tuned)
    done = CliRunner().invoke(cli.app, ["tune", str(target)])
    assert done.exit_code == 1, done.output
    assert "no result yet" in done.stdout
    assert "nothing to use yet: nothing compiled has passed all checks" in done.stdout
    assert "keep eager" not in done.stdout
    report = json.loads(Path("runs/net-0001/report.json").read_text())
    answer = report["phases"]["forward"]["answer"]
    assert (answer["verdict"], answer["best"]) == ("unknown", None)


def test_what_was_measured_in_the_algorithm_is_kept_with_the_run(target: Path) -> None:
    result = tune(target, executor=FakeExecutor(script, two_phases()), space=SPACE)
    assert "in_algorithm" not in load("last").to_dict()
    figures = {"steps_per_s": {"gain": {"value": 1.2, "low": 1.1, "high": 1.3}}}
    write_json(RunFolder(result.run_dir).in_algorithm, figures)
    assert load("last").to_dict()["in_algorithm"] == figures
