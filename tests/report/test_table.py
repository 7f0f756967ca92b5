"""One table over runs of several machines: what its cells say, its three forms, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fakes import FakeExecutor, failed, measured
from markdown_it import MarkdownIt
from recorded_runs import said, unpack

from autocompile.api import tune
from autocompile.errors import RunError
from autocompile.execute.executor import Ending
from autocompile.report.table import write_table
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
MAX = CompileConfig(mode="max-autotune")


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


def test_an_answer_has_the_figures_of_its_report(runs: dict[str, Path]) -> None:
    write_table(runs["H100"].parent, runs)
    found = json.loads((runs["H100"].parent / "table.json").read_text())
    phase = found["phases"]["forward"]
    for name, config, speed in (
        ("H100", MAX, 2.0),
        ("T4", DEFAULT_INDUCTOR, 1.2),
        ("cpu", EAGER, 1),
    ):
        (answer,) = phase["answers"][name]
        assert answer["config"] == config.to_dict() and answer["leads"]
        assert answer["speedup"]["value"] == pytest.approx(speed, rel=0.02)
        assert (answer["processes"] >= 3) == (name != "cpu")
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
    part = {"answers": {"H100": [{}]}}
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
    answer, sizes, _ = tables((tmp_path / "new" / "table.md").read_text())
    assert [row[:2] for row in answer[1:]] == [["forward", "H100"], ["", "T4"], ["", "cpu"]]
    assert re.fullmatch(r"(1\.9|2\.0)\d× \[\d.\d\d, \d.\d\d\]", answer[1][2])
    assert answer[3][2:] == ["keep eager", "eager"]
    assert sizes[0][4:] == ["speed-up", "against first", "setting"]
    assert [row[0] for row in sizes[1:]] == ["4", "4", "4"]
    page = (tmp_path / "new" / "table.html").read_text()
    assert "max-autotune" in page and page.count("<table>") == 3
    assert "http" not in page.replace("http-equiv", "")


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


# The command --------------------------------------------------------------------------------------


def test_show_of_several_runs_is_a_table(runs: dict[str, Path]) -> None:
    names = [f"{path}/report.json" for path in runs.values()]
    found = json.loads(said("show", *names, "--json"))
    assert list(found["machines"]) == ["H100", "T4", "cpu"]
    short, full = said("show", *names), said("show", *names, "-v")
    assert "By batch size" in short and "Machines" not in short
    assert "Machines" in full
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
