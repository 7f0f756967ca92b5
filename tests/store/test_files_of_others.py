"""Files that come from elsewhere: what makes no sense in them is one paragraph, and exit code 2."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import said
from scripts import tuned
from typer.testing import CliRunner

from autocompile.cli.commands import app
from autocompile.errors import UsageError
from autocompile.store.recorded_calls import RecordedCalls, read_calls
from autocompile.store.report import Report

SAMPLE = json.loads((Path(__file__).parents[1] / "data" / "report.json").read_text())
Change = Callable[[dict[str, Any]], Any]
DEEP = "[" * 100_000


def best(report: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = phase(report)["answer"]["best"]
    return found


def phase(report: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = report["phases"]["forward_exploration"]
    return found


KIND = {"shape": "8", "calls": 3, "eager_s": 0.01, "call_s": 0.0}
CHANGES: dict[str, Change] = {
    "no throughput": lambda r: best(r)["eager_throughput"].update(value=0),
    "a speed-up below 0": lambda r: best(r)["speedup"].update(value=-1.5),
    "ends that are swapped": lambda r: best(r)["speedup"].update(low=2.0),
    "a call without time": lambda r: best(r).update(call_s=0),
    "calls without time": lambda r: phase(r).update(calls=[KIND]),
    "a trial without time": lambda r: phase(r)["trials"][1].update(call_s=-1.0),
    "a setting that is none": lambda r: best(r)["config"].update(backend=[]),
    "no setting": lambda r: phase(r)["answer"].update(best=None),
    "no such verdict": lambda r: phase(r)["answer"].update(verdict="fastest"),
    "no setting from so many calls on": lambda r: phase(r).update(
        as_calls_grow=[{"number": 77, "calls": 3}]
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("command", ["show", "export"])
def test_a_report_that_makes_no_sense_is_one_paragraph(
    work: Path, name: str, command: str
) -> None:
    report = copy.deepcopy(SAMPLE)
    CHANGES[name](report)
    Path("theirs.json").write_text(json.dumps(report))
    done = CliRunner().invoke(app, [command, "theirs.json"])
    assert isinstance(done.exception, UsageError), done.exception
    assert done.exception.exit_code == 2
    assert "theirs.json" in done.exception.what
    assert done.exception.hint


def test_what_a_report_says_is_unchanged_by_reading_it() -> None:
    assert Report.read(SAMPLE, "it").to_dict() == SAMPLE


@pytest.mark.parametrize("text", [DEEP, '{"schema": 1, "phases": ' + DEEP])
def test_a_file_that_is_nested_without_end_is_one_paragraph(
    work: Path, text: str
) -> None:
    Path("deep.json").write_text(text)
    assert "deep.json is not JSON" in said("show", "deep.json")
    assert "cannot read deep.json" in said("verify", "deep.json")
    with pytest.raises(UsageError, match="is not JSON"):
        read_calls(Path("deep.json"))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_call_with_a_number_that_json_does_not_have_is_refused(
    tmp_path: Path, value: str
) -> None:
    path = tmp_path / "calls.json"
    RecordedCalls("Net", ({"args": [1.5], "kwargs": {}},), (0,)).write(path)
    path.write_text(path.read_text().replace("1.5", value))
    with pytest.raises(UsageError, match="is damaged"):
        read_calls(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run["request"].update(limits={"watts": 300}),
        lambda run: run["request"].update(limits={"latency_s": "short"}),
        lambda run: run["request"].update(objective="loudness"),
        lambda run: run.update(spaces={"forward": {"rest": 3}}),
    ],
)
def test_a_run_that_was_edited_or_is_newer_is_one_paragraph(
    target: Path, change: Change
) -> None:
    tuned(target)
    path = Path("runs/net-0001/run.json")
    run = json.loads(path.read_text())
    change(run)
    path.write_text(json.dumps(run))
    for command in (("show", "last"), ("export", "last")):
        done = CliRunner().invoke(app, command)
        assert getattr(done.exception, "exit_code", None) == 2, done.exception
        assert "run.json is damaged" in str(done.exception)
    (row,) = json.loads(said("list", "--json"))
    assert row["state"] == "unreadable" and "damaged" in row["message"]
