"""list, show of several and the schema of reports, on recorded and scripted runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import report_schema
from fakes import FakeExecutor, measured
from recorded_runs import RUNS, said, unpack
from scripts import tune

from autocompile.execute.job import locked
from autocompile.rllib.gain import figures
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.record import RunFolder

RECORDED = [*sorted(RUNS.glob("*/report.json")), RUNS.parent / "report.json"]


def rows(*args: str) -> Any:
    return json.loads(said(*args, "--json"))


def scripted(target: Path, folder: str, speed: float, **more: Any) -> Path:
    """A run in which Inductor is faster by a factor."""

    speeds, run = {"inductor": speed, "eager": 1.0}, Path("runs") / folder
    executor = FakeExecutor(
        lambda request: measured(speeds[request["config"]["backend"]])
    )
    space = SearchSpace(modes=("default",), batch_sizes=(4, 16))
    tune(target, executor=executor, run_dir=run, trials=6, space=space, **more)
    return run


def report_of(run: Path) -> Any:
    return json.loads((run / "report.json").read_text("utf-8"))


# The schema ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    found = json.loads(said("show", "--schema"))
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.parent.name)
def test_every_recorded_report_is_valid(
    schema: jsonschema.Draft202012Validator, path: Path
) -> None:
    schema.validate(report_of(path.parent))


def test_a_fresh_report_is_valid_and_what_nobody_writes_is_refused(
    schema: jsonschema.Draft202012Validator, target: Path
) -> None:
    report = report_of(scripted(target, "net-0001", 1.5))
    phase = report["phases"]["forward"]
    schema.validate(report)
    rounds = [
        {side: {"steps": 8, "train_s": 1.0} for side in ("untouched", "tuned")}
    ] * 3
    schema.validate({**report, "in_algorithm": figures(rounds)})
    assert not schema.is_valid({**report, "verdict": "faster"})
    assert not schema.is_valid(
        {**report, "phases": {"forward": {**phase, "verdict": "fastest"}}}
    )
    trials = {"forward": {**phase, "trials": [{"number": 1}]}}
    assert not schema.is_valid({**report, "phases": trials})


def test_the_schema_is_made_of_the_types() -> None:
    """``python tests/report_schema.py`` writes it anew."""
    assert said("show", "--schema") == report_schema.text()


# list ---------------------------------------------------------------------------------------------


def test_runs_are_listed_with_what_came_of_them(work: Path) -> None:
    for number, name in enumerate(("cpu", "interrupted", "rllib")):
        unpack(name)
        os.utime(f"runs/{name}/run.json", (1e9 + number, 1e9 + number))
    cpu, interrupted, rllib = rows("list")
    assert (cpu["name"], cpu["target"], cpu["state"]) == ("cpu", "mlp.py", "done")
    assert cpu["when"].startswith("2001-09-0")
    assert cpu["phases"]["forward"]["verdict"] == "keep_eager"
    step = cpu["phases"]["optimizer_step"]
    assert (step["verdict"], step["batch_size"]) == ("faster", None)
    assert step["speedup"]["low"] < step["speedup"]["value"] < step["speedup"]["high"]
    assert interrupted["state"] == "interrupted"
    assert rllib["phases"]["learner_update"]["batch_size"] == 64
    text = said("list")
    assert "3.00× [2.78, 3.23]" in text
    assert "at batch size 64 open" in text
    head = re.compile(
        r"interrupted +2001-09-09 \d\d:\d\d +mlp\.py +interrupted +forward +keep eager open"
    )
    assert any(head.fullmatch(line) for line in text.splitlines())
    assert said("list", "--run-dir", "runs") == text


def test_the_runs_of_a_cluster_are_listed_by_their_folder_and_type(
    target: Path,
) -> None:
    for folder in ("net-0001", "net-0002/H100", "net-0002/T4"):
        scripted(target, folder, 1.5)
    assert [row["name"] for row in rows("list")] == [
        "net-0001",
        "net-0002/H100",
        "net-0002/T4",
    ]
    assert [row["name"] for row in rows("list", "--run-dir", "runs/net-0002")] == [
        "H100",
        "T4",
    ]
    assert "\nnet-0002/H100   20" in said("list")


def test_a_list_says_what_show_says_whatever_an_older_report_holds(work: Path) -> None:
    """Both are made of the records."""
    unpack("cpu")
    Path("runs/cpu/report.json").write_text('{"phases": {"forward": "of before"}}')
    (row,) = rows("list")
    shown = json.loads(said("show", "cpu", "--json"))["phases"]
    for name, phase in shown.items():
        answer, listed = phase["answer"], row["phases"][name]
        assert listed["verdict"] == answer["verdict"]
        assert listed["confidence"] == answer["confidence"]
        assert listed["speedup"] == answer["best"]["speedup"]
    with locked(RunFolder("runs/cpu")):
        assert [row["state"] for row in rows("list")] == ["running"]
    Path("runs/cpu/run.json").write_text("{")
    (row,) = rows("list")
    assert row["state"] == "unreadable" and "runs/cpu/run.json" in row["message"]
    assert "unreadable" in said("list")


def test_where_there_are_no_runs_it_says_so(work: Path) -> None:
    assert "there is no folder runs" in said("list")
    Path("runs").mkdir()
    assert rows("list") == []
    assert "autocompile tune model.py" in said("list")


# two runs -----------------------------------------------------------------------------------------


def test_what_changed_from_the_first_run_is_told_by_phase_and_batch_size(
    target: Path,
) -> None:
    scripted(target, "slow", 1.2)
    scripted(target, "fast", 1.8, objective="latency")
    lines = said("show", "slow", "fast").splitlines()
    start = next(i for i, line in enumerate(lines) if "against first" in line)
    assert [line.split()[:2] for line in lines[start + 1 : start + 5]] == [
        ["4", "slow"], ["4", "fast"], ["16", "slow"], ["16", "fast"],
    ]  # fmt: skip
    change = re.search(
        r"1\.80× \[.*?\] +1\.(49|50|51)× \[(1\.[34]\d), (1\.[56]\d)\]", lines[start + 2]
    )
    assert change and float(change[2]) < 1.5 < float(change[3])
    assert said("show", "slow", "slow").count("no clear change") == 0  # it is one run
    Path("copy.json").write_text(json.dumps(report_of(Path("runs/slow"))))
    assert said("show", "slow", "copy.json").count("no clear change") == 2


def test_reports_of_two_machines_are_compared(target: Path) -> None:
    report = report_of(scripted(target, "here", 1.5))
    report["target"]["spec"] = f"elsewhere/{target.name}"
    report["environment"] |= {"torch": "2.99.0", "device_name": "another"}
    phase = report["phases"]["forward"]
    phase["other_sizes"] = []
    report["phases"]["train_step"] = phase
    Path("there.json").write_text(json.dumps(report))
    found = json.loads(said("show", "here", "there.json", "--json"))
    others = [len(each["phases"]["forward"]["other_sizes"]) for each in found.values()]
    assert others == [1, 0] and found["another"] == report
    text = said("show", "here", "there.json")
    train_step = text.split("\ntrain_step")[-1]
    assert "another" in train_step and "against first" in train_step
    assert "→ 2.99.0" in text and "device_name" in text and "busy_" not in text


def test_the_unlike_are_refused(target: Path) -> None:
    report = report_of(scripted(target, "one", 1.5))
    of_it = {**report["target"], "parameters": 10}

    def refused(text: Any) -> str:
        Path("other.json").write_text(
            text if isinstance(text, str) else json.dumps(text)
        )
        return said("show", "one", "other.json")

    def changed(**changes: Any) -> str:
        return refused({**report, **changes})

    assert "speeds of different targets say nothing" in changed(
        target={**of_it, "spec": "o.py"}
    )
    assert "it is another model" in changed(target={**of_it, "parameters": 20})
    assert "other.json is damaged" in changed(phases={"forward": {"answer": 3}})
    assert "has schema 99" in changed(schema=99)
    assert "is not a report: it has no target" in refused({"schema": report["schema"]})
    assert "autocompile verify other.json" in refused('{"autocompile_settings": 1}')
    assert "other.json is not JSON" in refused("{")
    assert "cannot read no.json" in said("show", "one", "no.json")


@pytest.mark.parametrize(
    "newer",
    [
        {"tiling": "auto"},
        {"scope": "graph"},
        {"threads": "all"},
        {"guards": "skip_all"},  # of an older version, which dropped checks
        {"options": [1]},
        {"options": {"a": [1]}},
        {"backend": 7},
    ],
    ids=str,
)
def test_a_setting_of_a_newer_version_is_one_clear_error(
    work: Path, typed: Callable[..., Any], newer: dict[str, Any]
) -> None:
    sample = Path(__file__).parents[1] / "data" / "report.json"
    report = json.loads(sample.read_text("utf-8"))
    (work / "old.json").write_text(json.dumps(report))
    for phase in report["phases"].values():
        for one in (*phase["trials"], phase["answer"]["best"]):
            one["config"].update(newer)
    (work / "new.json").write_text(json.dumps(report))
    for command in (
        "show new.json",
        "show old.json new.json",
        "export new.json",
    ):
        done = typed(*command.split())
        assert done.returncode == 2, command
        assert "error: new.json holds a setting that cannot be read: " in done.stderr
        todo = "tune again" if "guards" in newer else "install a newer autocompile"
        assert f"try: {todo}" in done.stderr
