"""From records to the report: what is decided, what is open, and what a gate may rely on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import failed, measured
from made_records import LITE, MAX, Run

from autocompile.report.build import build_report
from autocompile.result import Result
from autocompile.settings.config import CompileConfig
from autocompile.store.record import Outcome
from autocompile.store.report import Report

PLAN = {"target": "net.py", "effort": "quick", "objective": "throughput", "seed": 0}
CPU = {"device": "cpu"}


def report(run: Run, run_dir: str = "runs/net-0001") -> dict[str, Any]:
    return typed(run, run_dir).to_dict()


def typed(run: Run, run_dir: str = "runs/net-0001") -> Report:
    about: dict[str, Any] = {"plan": PLAN, "target": {}, "environment": CPU}
    return build_report({**about, "phases": [run.phase]}, run.records, run_dir=run_dir)


def test_no_figure_of_a_single_process_passes_a_gate() -> None:
    run = Run()
    lite = run.search(LITE, 2.0)
    for sets in range(4):
        found = report(run)
        assert found["phases"]["forward"]["best"]["confirmed_processes"] == sets
        assert Result(typed(run), run.records).is_faster_by(1.5, "forward") is (sets > 1)
        run.side(lite, measured(2.0), race=sets + 1)
    assert not Result(typed(run), run.records).is_faster_by(2.0, "forward")


@pytest.mark.parametrize(
    ("run_dir", "more"), [("runs/net-0001", ""), ("/my runs/a", " --run-dir '/my runs/a'")]
)
def test_what_is_open_comes_with_the_command_that_settles_it(run_dir: str, more: str) -> None:
    run = Run()
    run.race(run.search(LITE, 1.3), 1.31)
    run.race(run.search(MAX, 1.3), 1.30)
    said = report(run, run_dir)["phases"]["forward"]["confidence"]
    assert (said["word"], said["decided"]) == ("open", False)
    assert said["open"].endswith("% faster")
    assert said["command"] == f"autocompile tune net.py --resume --budget 5m{more}"


def test_a_run_on_a_cluster_goes_on_there() -> None:
    run = Run()
    run.search(LITE, 1.3)
    about = {"plan": PLAN, "target": {}, "environment": CPU, "phases": ["forward"]}
    about["options"] = {"ray": "head:6379", "jobs": 2, "isolation": "auto"}
    for folder in ("runs/net-0001", "/a/b"):
        found = build_report(about, run.records, run_dir=f"{folder}/H100").to_dict()
        said = found["phases"]["forward"]["confidence"]["command"]
        there = f"--jobs 2 --ray head:6379 --accelerators H100 --run-dir {folder}"
        assert said == f"autocompile tune net.py --resume --budget 5m {there}"


@pytest.mark.parametrize(
    ("message", "word"),
    [("['outputs'] is off by 0.013 (call 1)", "low"), ("check() rejects: no", "high")],
)
def test_what_plain_compile_was_refused_for_may_be_rounding(message: str, word: str) -> None:
    run = Run()
    run.add(CompileConfig(), failed("wrong_output", message=message))
    run.race(run.search(LITE, 1.3), 1.31, 1.31, 1.31)
    said = report(run)["phases"]["forward"]["confidence"]
    assert (said["word"], said["command"]) == (word, "")
    assert ("--tolerance" in said["open"]) is (word == "low")


def test_a_best_that_was_not_raced_is_not_called_decided() -> None:
    run = Run()
    run.search(LITE, 1.3)
    said = report(run)["phases"]["forward"]["confidence"]
    assert said["open"] == "confirmed in 0 of 3 fresh processes"
    assert said["word"] == "low"


def test_a_batch_size_at_which_nothing_else_was_tried_is_open() -> None:
    """ "Nothing is faster" would be said of nothing."""
    run = Run()
    run.race(run.search(LITE, 1.3), 1.3, 1.3, 1.3)
    own = Run(batch_size=16)
    own.add(LITE, failed("interrupted", "measure"))
    records = [*run.records, *(replace(r, number=r.number + 10) for r in own.records)]
    about = {"plan": PLAN, "target": {"own_batch_size": {"forward": 16}}, "environment": CPU}
    found = build_report(
        {**about, "phases": ["forward"]}, records, run_dir="runs/net-0001"
    ).to_dict()
    phase = found["phases"]["forward"]
    assert phase["verdict"] == "keep_eager"
    assert phase["reason"] == "the run ended before any other setting was tried at batch size 16"
    assert phase["confidence"]["open"] == phase["reason"]
    assert phase["confidence"]["command"].startswith("autocompile tune net.py --resume")


def test_a_clear_decision_has_no_command() -> None:
    run = Run()
    run.race(run.search(LITE, 1.3), 1.3, 1.3, 1.3)
    said = report(run)["phases"]["forward"]["confidence"]
    assert said == {"word": "high", "decided": True, "open": "", "command": ""}


def test_keeping_eager_is_not_sure_where_nothing_worked_and_more_could_be_tried() -> None:
    run = Run()
    run.add(LITE, failed("wrong_output", "verify"))
    about = {"plan": PLAN, "target": {}, "environment": CPU, "phases": [run.phase]}
    for untried, word in ((60, "low"), (0, "high")):
        space = {"untried": untried, "configs": 62}
        found = build_report(
            {**about, "spaces": {"forward": space}}, run.records, run_dir="x"
        ).to_dict()
        said = found["phases"]["forward"]["confidence"]
        assert (said["word"], said["open"]) == (word, "2 of 62 settings tried" * (untried > 0))


def test_where_eager_is_kept_the_row_of_its_size_is_of_what_was_raced() -> None:
    run = Run()
    lite = run.search(LITE, 1.0)
    run.race(lite, 1.0, 1.0, 1.0)
    run.search(MAX, 1.005)
    phase = report(run)["phases"]["forward"]
    assert phase["verdict"] == "keep_eager"
    assert phase["by_batch_size"][0]["number"] == lite


def test_where_eager_mode_itself_fails_the_reason_is_its_own_error() -> None:
    run = Run()
    eager = replace(run.records[0], outcome=Outcome.RUNTIME_ERROR, message="IndexError: index 16")
    run.records = [replace(eager, measurement=None)]
    found = report(run)["phases"]["forward"]
    assert found["verdict"] == "failed"
    assert found["reason"] == "eager mode itself fails: IndexError: index 16"
