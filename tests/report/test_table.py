"""One table over runs of several machines: what its cells say, its three forms, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import ROOT
from fakes import FakeExecutor, failed, measured
from markdown_it import MarkdownIt
from recorded_runs import RUNS, said, unpack

from autocompile.api import tune
from autocompile.errors import RunError
from autocompile.estimate.intervals import Interval, between_runs
from autocompile.execute.executor import Ending
from autocompile.report.table import table, write_table
from autocompile.settings.config import DEFAULT_INDUCTOR, EAGER, CompileConfig
from autocompile.space.space import SearchSpace

MACHINES = {  # the speed of each setting there
    "H100": {"default": 1.3, "max-autotune": 2.0, "aot_eager": 1.5},
    "T4": {"default": 1.2, "max-autotune": failed("crashed"), "aot_eager": 0.8},
    "cpu": {"default": 0.7},
}
SPACES = {"cpu": SearchSpace(("eager", "inductor"), ("default",), batch_sizes=(4,))}
SPACE = SearchSpace(
    ("eager", "inductor", "aot_eager"), ("default", "max-autotune"), batch_sizes=(4,)
)
REDUCED, GRAPHS = CompileConfig(mode="max-autotune"), CompileConfig("aot_eager")


def scripted(target: Path, name: str) -> Path:
    """A run in which each setting is as fast as on a machine of the name."""
    speeds = MACHINES[name]

    def script(request: Any) -> Ending:
        config = request["config"]
        if config["backend"] == "eager":
            return measured(1.0)
        key = config["mode"] if config["backend"] == "inductor" else config["backend"]
        found = speeds[key]
        return found if isinstance(found, Ending) else measured(found)

    run = target.parent / "runs" / name
    space = SPACES.get(name, SPACE)
    tune(target, executor=FakeExecutor(script), run_dir=run, space=space, effort="full")
    report = json.loads((run / "report.json").read_text())
    report["environment"]["device_name"] = name
    (run / "report.json").write_text(json.dumps(report))
    return run


@pytest.fixture
def runs(target: Path) -> dict[str, Path]:
    return {name: scripted(target, name) for name in MACHINES}


def cells(found: Any, config: CompileConfig) -> list[Any]:
    (row,) = [r for r in found["phases"]["forward"]["rows"] if r["config"] == config.to_dict()]
    return list(row["machines"].values())


def test_a_cell_tells_of_speed_failure_choice_or_nothing(runs: dict[str, Path]) -> None:
    write_table(runs["H100"].parent, runs)
    found = json.loads((runs["H100"].parent / "table.json").read_text())
    h100, t4, cpu = cells(found, REDUCED)
    assert h100["speedup"]["value"] == pytest.approx(2.0, rel=0.02)
    assert h100["processes"] >= 3 and h100["chosen"]
    assert (t4["outcome"], t4["speedup"], t4["chosen"]) == ("crashed", None, False)
    assert cpu is None
    assert [cell and cell["chosen"] for cell in cells(found, DEFAULT_INDUCTOR)] == [
        False,
        True,
        False,
    ]
    assert [cell and cell["chosen"] for cell in cells(found, EAGER)] == [False, False, True]
    assert [bool(cell) for cell in cells(found, GRAPHS)] == [True, True, False]
    phase = found["phases"]["forward"]
    assert phase["rows"][0]["config"] == EAGER.to_dict()
    for name, config in (("H100", REDUCED), ("T4", DEFAULT_INDUCTOR), ("cpu", EAGER)):
        (answer,) = phase["answers"][name]
        assert answer["config"] == config.to_dict() and answer["leads"]
        assert answer["throughput"] == pytest.approx(
            answer["eager_throughput"] * answer["speedup"]["value"], rel=0.02
        )


def test_the_schema_holds_what_a_table_has_and_nothing_else(runs: dict[str, Path]) -> None:
    schema = json.loads(said("show", "--schema"))
    check = jsonschema.Draft202012Validator({"$ref": "#/$defs/table", "$defs": schema["$defs"]})
    write_table(runs["H100"].parent, runs)
    found = json.loads((runs["H100"].parent / "table.json").read_text())
    check.validate(found)
    assert not check.is_valid({**found, "verdict": "faster"})
    phase = found["phases"]["forward"]
    for part in ({"rows": [{}]}, {"answers": {"H100": [{}]}}):
        assert not check.is_valid({**found, "phases": {"forward": {**phase, **part}}})


def tables(text: str) -> list[list[list[str]]]:
    found: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level >= 4:
            found[-1][-1].append("".join(c.content for c in token.children or ()))
    return found


def test_it_reads_as_rllibs_tables_do(runs: dict[str, Path], tmp_path: Path) -> None:
    write_table(tmp_path / "new", runs)
    answer, sizes, settings, _ = tables((tmp_path / "new" / "table.md").read_text())
    assert [row[:2] for row in answer[1:]] == [["forward", "H100"], ["", "T4"], ["", "cpu"]]
    assert re.fullmatch(r"(1\.9|2\.0)\d× \[\d.\d\d, \d.\d\d\]", answer[1][2])
    assert answer[3][2:] == ["keep eager", "eager"]
    assert sizes[0] == ["batch size", "machine", "eager", "best", "speed-up", "setting"]
    assert [row[0] for row in sizes[1:]] == ["4", "4", "4"]
    assert settings[0] == ["H100", "T4", "cpu", "setting"]
    by_setting = {row[-1]: row[:-1] for row in settings[1:]}
    assert [cell.endswith(" samples/s") for cell in by_setting["eager"]] == [True, True, False]
    assert by_setting["eager"][2].endswith(" samples/s ←")
    h100, t4, cpu = by_setting["inductor max-autotune"]
    assert h100.endswith("] ←") and (t4, cpu) == ("crashed", "")
    page = (tmp_path / "new" / "table.html").read_text()
    assert '<span class="error">crashed</span>' in page and "max-autotune" in page
    assert page.count("<table>") == 4 and "http" not in page.replace("http-equiv", "")


def test_a_name_is_never_markup(runs: dict[str, Path], tmp_path: Path) -> None:
    write_table(tmp_path, {"<script>alert(1)</script> | *x*": runs["H100"]})
    assert "<script>alert" not in (tmp_path / "table.html").read_text()
    answer, *_ = tables((tmp_path / "table.md").read_text())
    assert answer[1][1] == "<script>alert(1)</script> | *x*"


def test_a_run_without_a_report_is_named(runs: dict[str, Path], tmp_path: Path) -> None:
    (runs["T4"] / "report.json").unlink()
    with pytest.raises(RunError, match=r"cannot read .*T4/report\.json") as caught:
        write_table(tmp_path, runs)
    assert caught.value.hint and "--resume" in caught.value.hint
    assert not (tmp_path / "table.json").exists()


def test_duplicates_have_the_figure_of_their_codes_trial() -> None:
    report = json.loads((RUNS / "inductor" / "report.json").read_text())
    rows = table({"cpu": report})["phases"]["forward"]["rows"]
    trials = {t["number"]: t for t in report["phases"]["forward"]["trials"]}
    every = {r["machines"]["cpu"]["number"]: r["machines"]["cpu"] for r in rows}
    same = [
        n for n in every if trials[n]["outcome"] == "ok" and trials[n]["duplicate_of"] is not None
    ]
    assert same
    for number in same:
        assert every[number]["speedup"] == every[trials[number]["duplicate_of"]]["speedup"]


def test_reports_of_two_versions_and_machines_share_rows() -> None:
    names, folder = ("h100", "cpu"), ROOT / "studies" / "first_runs"
    reports = {name: json.loads((folder / name / "cnn.json").read_text()) for name in names}
    phase = table(reports)["phases"]["forward"]
    eager = [row for row in phase["rows"] if row["config"] == EAGER.to_dict()]
    assert [row["batch_size"] for row in eager] == [1, 4, 16]
    assert all(row["machines"]["h100"] and row["machines"]["cpu"] for row in eager)
    for name, answers in phase["answers"].items():
        for one in answers:
            size, config = one["batch_size"], one["config"]
            rows = [r["machines"][name] for r in phase["rows"] if r["batch_size"] == size]
            (chosen,) = [cell for cell in rows if cell and cell["chosen"]]
            assert chosen["speedup"] == one["speedup"] and chosen["processes"] == one["processes"]
            assert config in [r["config"] for r in phase["rows"]]
            (plain,) = [r for r in eager if r["batch_size"] == size]
            assert plain["machines"][name]["throughput"]["value"] == one["eager_throughput"]


def test_raced_settings_that_were_not_chosen_have_intervals_of_other_runs_too() -> None:
    report = json.loads((ROOT / "studies" / "first_runs" / "h100" / "cnn.json").read_text())
    found = [
        row["machines"]["h100"] for row in table({"h100": report})["phases"]["forward"]["rows"]
    ]
    told = [row["speedup"] for row in report["phases"]["forward"]["by_batch_size"]]
    raced = [one for one in found if one and one["processes"] and one["speedup"] not in told]
    assert raced
    narrowest = between_runs(Interval(1.0, 1.0, 1.0))
    for one in raced:
        gain = Interval(**one["speedup"])
        assert gain.half_width > narrowest.half_width


# The command --------------------------------------------------------------------------------------


def test_show_of_several_runs_is_a_table(runs: dict[str, Path]) -> None:
    names = [f"{path}/report.json" for path in runs.values()]
    found = json.loads(said("show", *names, "--json"))
    assert list(found["machines"]) == ["H100", "T4", "cpu"]
    short, full = said("show", *names), said("show", *names, "-v")
    assert "By batch size" in short and "crashed" not in short
    assert "Every setting at batch size 4" in full and "crashed" in full
    assert said("show", *names, "--html").strip() == "runs/table/table.html"
    folder = runs["H100"].parent / "table"
    assert json.loads((folder / "table.json").read_text()) == found


def test_runs_of_one_machine_have_the_names_that_were_typed(work: Path) -> None:
    unpack("cpu")
    unpack("inductor")
    found = json.loads(said("show", "cpu", "inductor", "--json"))
    assert list(found["machines"]) == ["cpu", "inductor"]
    assert said("show", "cpu", "inductor", "--html").strip() == "runs/table/table.html"
    unpack("rllib")
    assert "speeds of different targets say nothing" in said("show", "cpu", "rllib")


def test_the_report_of_another_machine_is_shown_and_exported_like_a_run(
    work: Path,
) -> None:
    unpack("cpu")
    said("show", "cpu", "--html")
    report = json.loads(said("show", "cpu", "--json"))
    Path("h100").mkdir()
    Path("h100", "cnn.json").write_text(json.dumps(report))
    assert json.loads(said("show", "h100/cnn.json", "--json")) == report
    assert "autocompile export h100/cnn.json" in said("show", "h100/cnn.json")
    assert said("export", "h100/cnn.json") == said("export", "cpu")
    assert said("show", "h100/cnn.json", "--html").strip() == "runs/table/table.html"
    assert sorted(path.name for path in work.iterdir()) == ["h100", "runs"]
