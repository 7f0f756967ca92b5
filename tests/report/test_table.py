"""One table over runs of several machines: what its cells say, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeExecutor, failed, measured
from recorded_runs import said, unpack
from scripts import tune

from autocompile.commands.listing import read_report
from autocompile.execute.executor import Ending
from autocompile.report.document import Table, spans
from autocompile.report.table import table, write_table
from autocompile.settings.config import CompileConfig
from autocompile.settings.searchspace import SearchSpace
from autocompile.store.report import Report

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


def reports(runs: dict[str, Path]) -> dict[str, Report]:
    return {name: read_report(path / "report.json") for name, path in runs.items()}


def rows(shown: Table) -> list[list[str]]:
    return [
        ["".join(span.text for span in spans(cell)) for cell in row]
        for row in shown.rows
    ]


def test_it_reads_as_rllibs_tables_do_with_the_figures_of_the_reports(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    shown = table(reports(runs))
    answer = rows(shown.answer)
    assert [row[:2] for row in answer] == [["forward", "H100"], ["", "T4"], ["", "cpu"]]
    assert re.fullmatch(r"(1\.9|2\.0)\d× \[\d.\d\d, \d.\d\d\]", answer[0][2])
    assert answer[0][3] == "inductor max-autotune"
    assert (
        answer[1][2].startswith(("1.2", "1.19"))
        and answer[1][3] == "plain torch.compile()"
    )
    assert answer[2][2:] == ["keep eager", "eager"]
    (sizes,) = shown.sections[0].blocks
    assert isinstance(sizes, Table)
    assert sizes.titles[4:] == ("speed-up", "against first", "setting")
    found = rows(sizes)
    assert [row[0] for row in found] == ["4", "4", "4"]
    assert found[0][5] == "" and found[1][5].startswith("0.")
    assert found[2][2] == found[2][3]  # eager itself is the best there
    page = write_table(tmp_path / "new", reports(runs)).read_text()
    assert "max-autotune" in page and page.count("<table>") == 3
    assert "http" not in page.replace("http-equiv", "")


def test_a_name_is_never_markup(runs: dict[str, Path], tmp_path: Path) -> None:
    named = {
        "<script>alert(1)</script> | *x*": read_report(runs["H100"] / "report.json")
    }
    assert "<script>" not in write_table(tmp_path, named).read_text()


# The command --------------------------------------------------------------------------------------


def test_show_of_several_runs_is_a_table(runs: dict[str, Path]) -> None:
    names = [f"{path}/report.json" for path in runs.values()]
    found = json.loads(said("show", *names, "--json"))
    assert list(found) == ["H100", "T4", "cpu"]
    assert found["T4"] == json.loads(said("show", names[1], "--json"))
    short, full = said("show", *names), said("show", *names, "-v")
    assert "By batch size" in short and "Machines" not in short
    assert "Machines" in full
    assert said("show", *names, "--html").strip() == "runs/table/table.html"
    assert "max-autotune" in (runs["H100"].parent / "table" / "table.html").read_text()


def test_runs_of_one_machine_have_the_names_that_were_typed(work: Path) -> None:
    unpack("cpu")
    unpack("inductor")
    found = json.loads(said("show", "cpu", "inductor", "--json"))
    assert list(found) == ["cpu", "inductor"]
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
