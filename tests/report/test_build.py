"""From records to the report: what is decided, what is open, and what a gate may rely on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes import failed, measured
from made_records import LITE, MAX, Run, run_of

from autocompile.export import export
from autocompile.report.build import build_report
from autocompile.report.page import to_html
from autocompile.result import Result
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.tuned import Tuned
from autocompile.store.record import Outcome, Record
from autocompile.store.report import Report

PLAN = {"target": "net.py", "effort": "quick", "objective": "throughput", "seed": 0}
CPU = {"device": "cpu"}
ALL_TRIED = {"untried": 0, "rest": [], "unseen": []}


def report(run: Run, run_dir: str = "runs/net-0001") -> dict[str, Any]:
    return typed(run, run_dir).to_dict()


def typed(run: Run, run_dir: str = "runs/net-0001") -> Report:
    about: dict[str, Any] = {"request": PLAN, "target": {}, "environment": CPU}
    about |= {"phases": [run.phase], "spaces": {run.phase: ALL_TRIED}}
    return build_report(run_of(about), run.records, run_dir)


def test_no_figure_of_a_single_process_passes_a_gate() -> None:
    run = Run()
    lite = run.search(LITE, 2.0)
    for sets in range(4):
        found = report(run)
        assert (
            found["phases"]["forward"]["answer"]["best"]["confirmed_processes"] == sets
        )
        assert Result(typed(run), run.records).is_faster_by(1.5, "forward") is (
            sets > 1
        )
        run.side(lite, measured(2.0), race=sets + 1)
    assert not Result(typed(run), run.records).is_faster_by(2.0, "forward")


@pytest.mark.parametrize(
    ("run_dir", "named"),
    [("runs/net-0001", "runs/net-0001"), ("/my runs/a", "'/my runs/a'")],
)
def test_what_is_open_comes_with_the_command_that_settles_it(
    run_dir: str, named: str
) -> None:
    run = Run()
    run.race(run.search(LITE, 1.3), 1.31)
    run.race(run.search(MAX, 1.3), 1.30)
    said = report(run, run_dir)["phases"]["forward"]["answer"]
    assert said["confidence"] == "low"
    assert said["why"].endswith("% faster")
    command = f"autocompile tune net.py --resume --budget 5m --run-dir {named}"
    assert said["command"] == command


def test_a_run_on_a_cluster_goes_on_there() -> None:
    run = Run()
    run.search(LITE, 1.3)
    options = {"ray": "head:6379", "jobs": 2, "isolation": "auto"}
    about = {"target": {}, "environment": CPU, "phases": ["forward"]}
    about["request"] = {**PLAN, **options}
    for folder in ("runs/net-0001", "/a/b"):
        found = build_report(run_of(about), run.records, f"{folder}/H100").to_dict()
        said = found["phases"]["forward"]["answer"]["command"]
        there = f"--jobs 2 --ray head:6379 --accelerators H100 --run-dir {folder}"
        assert said == f"autocompile tune net.py --resume --budget 5m {there}"


@pytest.mark.parametrize(
    ("message", "word"),
    [("['outputs'] is off by 0.013 (call 1)", "low"), ("check() rejects: no", "high")],
)
def test_what_plain_compile_was_refused_for_may_be_rounding(
    message: str, word: str
) -> None:
    run = Run()
    run.add(CompileConfig(), failed("wrong_output", message=message))
    run.race(run.search(LITE, 1.3), 1.31, 1.31, 1.31)
    said = report(run)["phases"]["forward"]["answer"]
    assert (said["confidence"], said["command"]) == (word, "")
    assert ("--tolerance" in said["why"]) is (word == "low")


def test_a_best_that_was_not_raced_is_not_called_decided() -> None:
    run = Run()
    run.search(LITE, 1.3)
    said = report(run)["phases"]["forward"]["answer"]
    assert said["why"] == "confirmed in 0 of 3 fresh processes"
    assert said["confidence"] == "low"


def test_a_batch_size_at_which_nothing_else_was_tried_has_no_answer() -> None:
    """ "Nothing is faster" would be said of nothing."""
    run = Run()
    run.race(run.search(LITE, 1.3), 1.3, 1.3, 1.3)
    own = Run(batch_size=16)
    own.add(LITE, failed("interrupted", "measure"))
    records = [*run.records, *(replace(r, number=r.number + 10) for r in own.records)]
    about = {
        "request": PLAN,
        "target": {"own_batch_size": {"forward": 16}},
        "environment": CPU,
    }
    found = build_report(
        run_of({**about, "phases": ["forward"]}), records, "runs/net-0001"
    ).to_dict()
    phase = found["phases"]["forward"]
    assert phase["answer"]["verdict"] == "unknown"
    assert phase["answer"]["reason"] == (
        "no compiled setting has ended at batch size 16: inductor lite was stopped after "
        "1 s, in step measure"
    )
    assert phase["answer"]["command"].startswith("autocompile tune net.py --resume")
    (other,) = phase["other_sizes"]
    assert (other["batch_size"], other["verdict"]) == (4, "faster")


def test_a_clear_decision_has_no_command() -> None:
    run = Run()
    run.race(run.search(LITE, 1.3), 1.3, 1.3, 1.3)
    said = report(run)["phases"]["forward"]["answer"]
    assert [said[name] for name in ("confidence", "why", "command")] == ["high", "", ""]


def test_keeping_eager_is_not_sure_where_nothing_worked_and_more_could_be_tried() -> (
    None
):
    run = Run()
    run.add(LITE, failed("wrong_output", "verify"))
    about = {"request": PLAN, "target": {}, "environment": CPU, "phases": [run.phase]}
    for untried, word in ((60, "low"), (0, "high")):
        space = {"untried": untried, "configs": 62, "rest": []}
        found = build_report(
            run_of({**about, "spaces": {"forward": space}}), run.records, "x"
        ).to_dict()
        said = found["phases"]["forward"]["answer"]
        assert (said["confidence"], said["why"]) == (
            word,
            "2 of 62 settings tried at batch size 4" * (untried > 0),
        )


def test_where_eager_is_kept_the_row_of_its_size_is_of_what_was_raced() -> None:
    run = Run()
    lite = run.search(LITE, 1.0)
    run.race(lite, 1.0, 1.0, 1.0)
    run.search(MAX, 1.005)
    phase = report(run)["phases"]["forward"]
    assert phase["answer"]["verdict"] == "keep_eager"
    assert phase["answer"]["next"]["number"] == lite


def test_where_eager_mode_itself_fails_the_reason_is_its_own_error() -> None:
    run = Run()
    eager = replace(
        run.records[0], outcome=Outcome.RUNTIME_ERROR, message="IndexError: index 16"
    )
    run.records = [replace(eager, measurement=None)]
    found = report(run)["phases"]["forward"]
    assert found["answer"]["verdict"] == "failed"
    assert found["answer"]["reason"] == "eager mode itself fails: IndexError: index 16"


SHAPES = (("8×128", 18, 5e-4, 4e-4), ("8×512", 2, 3e-3, 2e-3))
CALLS = {"model": "Net", "distinct": [{"args": [3], "kwargs": {}}], "order": [0, 0]}


def of_a_workload(*records: Record, **plan: Any) -> Result:
    about = {"request": {**PLAN, **plan}, "environment": CPU, "phases": ["forward"]}
    about["target"] = {"workload": {"calls": 20, "kinds": 2}}
    return Result(build_report(run_of(about), records, "x"), [*records])


def timed_at(horizon: float | None = None) -> list[Record]:
    run, names = Run(), ("shape", "calls", "eager_s", "call_s")
    kinds = [dict(zip(names, shape, strict=True)) for shape in SHAPES]
    run.records.clear()
    run.search(EAGER, 1.0, eager_s=15e-3)
    run.race(
        run.search(LITE, 1.5, kinds=kinds, eager_s=15e-3), 1.5, 1.5, 1.5, eager_s=15e-3
    )
    return [replace(r, horizon=horizon) for r in run.records if r.measurement]


def test_the_calls_of_a_workload_are_told_by_shape_and_percentile() -> None:
    result = of_a_workload(*timed_at())
    workload = result.to_dict()["phases"]["forward"]["workload"]
    assert [tuple(row.values()) for row in workload["percentiles"]] == [
        (50, 5e-4, 4e-4),
        (95, 3e-3, 2e-3),
        (99, 3e-3, 2e-3),
    ]
    lines = str(result).splitlines()
    assert any(line.split()[:3] == ["Pass", "10", "ms"] for line in lines)
    assert ["p95", "of", "all", "calls", "3.0", "ms", "2.0", "ms", "1.50×"] in map(
        str.split, lines
    )
    best = result.report.phases["forward"].answer.best
    assert best is not None and best.break_even_calls == round(1.0 / 5e-3 * 20)
    page = to_html(result.report)
    assert "Calls by shape" in page and "8×512" in page and "p99 of all calls" in page


def test_with_a_horizon_the_report_names_the_setting_of_each_number_of_calls() -> None:
    result = of_a_workload(*timed_at(horizon=2000.0), horizon=40_000)
    assert "Calls   eager up to 4 000 calls, then inductor lite" in str(result)
    turns = result.to_dict()["phases"]["forward"]["as_calls_grow"]
    assert [(turn["number"], turn["calls"]) for turn in turns] == [(0, 0), (1, 4000)]
    assert (
        "as_calls_grow" not in of_a_workload(*timed_at()).to_dict()["phases"]["forward"]
    )


def test_what_decided_goes_with_the_settings_and_back() -> None:
    limits = {"latency_s": 0.01, "percentiles": {"p95": 0.02}}
    decided = {"calls": CALLS, "limits": limits, "tolerance": 0.05, "seed": 7}
    decided |= {"horizon": 40_000, "calls_per_update": 3, "objective": "latency"}
    result = of_a_workload(*timed_at(horizon=2000.0), **decided)
    again = Report.read(result.to_dict(), "it")
    assert again.decided_by == result.report.decided_by == decided
    tuned = Tuned.from_report(again)
    assert Tuned.from_dict(tuned.to_dict()).to_dict() == tuned.to_dict()
    assert tuned.to_dict()["decided_by"] == decided
    untold = Tuned.from_report(of_a_workload(*timed_at()).report).to_dict()
    assert "decided_by" not in untold
    assert "decided_by" not in of_a_workload(*timed_at()).to_dict()


def test_what_it_costs_to_give_memory_back_is_said_where_it_is_much() -> None:
    for times, faults, is_said in (
        (1.7, 540.0, True),
        (1.02, 540.0, False),
        (1.7, 3.0, False),
    ):
        run = Run()
        run.records[0].detail["given_back"] = {"times": times, "faults": faults}
        run.search(LITE, 1.5)
        best = report(run)["phases"]["forward"]["answer"]["best"]
        cost = {"times": times, "faults": faults} if is_said else None
        assert best.get("given_back") == cost
        made, words = typed(run), "1.7 times as long"
        assert (f"{words} (540 page faults a call)" in to_html(made)) is is_said
        assert (words in export(made, "python")) is is_said
