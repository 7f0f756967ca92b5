"""Records on disk, and runs of another version: they open, or the error says what opens them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripts import tuned
from typer.testing import CliRunner

from autocompile.api import load
from autocompile.cli import commands as cli
from autocompile.errors import RunError
from autocompile.settings.config import CompileConfig
from autocompile.store.files import write_json
from autocompile.store.record import (
    GraphBreak,
    Measurement,
    Outcome,
    Record,
    RunFolder,
    Step,
)

Edit = Callable[[dict[str, Any]], Any]


# Records -----------------------------------------------------------------------------------------


def record(number: int = 3) -> Record:
    return Record(
        number=number,
        phase="forward",
        config=CompileConfig(mode="max-autotune"),
        batch_size=4,
        outcome=Outcome.OK,
        step=Step.EXIT,
        measurement=Measurement((2.0,) * 8, (1.0,) * 8, (1, 2), ("noisy",)),
        compile_s=1.5,
        spans=(("import", 1e9, 1e9 + 0.5), ("compile", 1e9 + 0.5, 1e9 + 2)),
        notes=["a note"],
        weights_live=True,
        where="net.py:3",
        breaks=[GraphBreak(place="net.py:3", reason="a loop")],
    )


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.read() == ([], [])
    folder.save(record())
    assert folder.read() == ([record()], [])
    assert folder.numbers() == [3]


def test_a_record_of_an_older_version_is_read_and_statistics_come_from_raw_times() -> (
    None
):
    data = record().to_dict()
    assert Record.from_dict(data).began == 1e9
    for name in ("spans", "weights_live", "where"):
        del data[name]
    data["detail"] = {"weights_live": True, "where": "net.py:3", "skipped_frames": 2}
    data["detail"]["breaks"] = [{"place": "net.py:3", "code": "", "reason": "a loop"}]
    del data["breaks"], data["skipped_frames"]
    data["measurement"] |= {"compiled_s": [0.5] * 8, "shortened": []}
    older = Record.from_dict(data)
    assert older.began is None and older.measurement is not None
    assert older.measurement.speedup.value == pytest.approx(4.0)
    assert (older.weights_live, older.where, older.detail) == (True, "net.py:3", {})
    assert older.skipped_frames == 2
    assert older.breaks == [GraphBreak(place="net.py:3", reason="a loop")]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"old": True})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert json.loads(path.read_text()) == {"old": True}


def test_a_folder_that_holds_no_run_or_cannot_is_a_clear_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(RunError, match="not a run folder"):
        folder.read_run()
    run = {"schema": 1, "request": {"target": "net.py"}, "environment": {"torch": "2"}}
    folder.run_json.write_text(json.dumps({**run, "phases": ["f"]}))
    with pytest.raises(RunError, match="was edited: it has no target"):
        folder.read_run()
    with pytest.raises(RunError, match="cannot create the folder"):
        RunFolder(folder.run_json / "run").create()


# Runs of other versions --------------------------------------------------------------------------


def edit(path: Path, change: Edit) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of this version, made once."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "net.py").write_text("never run: the executor is a fake")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tuned(Path("net.py"))
    return folder


@pytest.fixture
def run(finished: Path, work: Path) -> Path:
    """The folder of a copy of it."""
    shutil.copytree(finished, work, dirs_exist_ok=True)
    return Path("runs/net-0001")


def results(run: Path) -> list[Path]:
    return sorted(run.glob("trials/*/result.json"))


def test_keys_of_a_newer_version_are_passed_over(run: Path) -> None:
    before = load("last")
    assert before.notice == before.to_dict()["notice"] == ""
    for path in results(run):
        edit(path, lambda data: data["measurement"].update(joules=[1.0, 2.0]))
        edit(path, lambda data: data.update(weather="fine"))
    assert load("last").trials == before.trials
    assert load("last").notice == ""


def test_trials_that_cannot_be_read_are_left_out_and_told(run: Path) -> None:
    _, *others, last = results(run)
    edit(others[0], lambda data: data["config"].update(tiling="wide"))
    edit(others[1], lambda data: data["config"].update(autocast="float4"))
    edit(others[2], lambda data: data.update(outcome="melted"))
    others[3].write_text('{"schema": 1, "numb')
    edit(others[4], lambda data: data.pop("schema"))
    edit(others[5], lambda data: data.pop("config"))
    edit(others[6], lambda data: data.update(schema=2))
    edit(others[7], lambda data: data["config"].update(tiling="wide"))
    last.unlink()  # one that has not ended is no loss
    shown = load("last")
    assert [r.number for r in shown.trials] == [0, *range(9, len(others) + 1)]
    for words in (
        "trials left out (1, 8): a compile setting has no key 'tiling'",
        "trials left out (2): autocast 'float4' is none of",
        "trials left out (3): its result.json is damaged: 'melted'",
        "trials left out (4): its result.json is damaged: ",
        "trials left out (5): its result.json was not written by autocompile",
        "trials left out (6): its result.json is damaged: 'config'",
        "trials left out (7): its result.json has schema 2",
    ):
        assert words in shown.notice
    assert shown.verdict["forward"] != "failed"


def test_what_was_asked_for_in_a_newer_version_is_not_resumed(run: Path) -> None:
    edit(
        run / "run.json",
        lambda data: data["request"]["space"].update(tiling=["auto", "wide"]),
    )
    with pytest.raises(RunError, match="'tiling'"):
        tuned(Path("net.py"), resume=True)


def test_a_newer_schema_is_refused(run: Path) -> None:
    edit(
        run / "run.json",
        lambda data: data.update(schema=2, request={"target": "net.py"}),
    )
    for attempt in (lambda: load("last"), lambda: tuned(Path("net.py"), resume=True)):
        with pytest.raises(
            RunError, match=r"schema 2, and autocompile .* reads up to 1"
        ) as error:
            attempt()
        assert "install a newer autocompile" in error.value.text()


@pytest.mark.parametrize("schema", [None, "1", True, 0])
def test_a_file_of_another_program_is_not_taken_for_a_run(
    run: Path, schema: Any
) -> None:
    edit(run / "run.json", lambda data: data.update(schema=schema))
    with pytest.raises(RunError, match="was not written by autocompile"):
        load("last")


@pytest.mark.parametrize(
    "command", [["show"], ["show", "--json"], ["export", "--to", "json"]]
)
def test_the_commands_print_the_notice_beside_their_output(
    run: Path, command: list[str]
) -> None:
    edit(results(run)[1], lambda data: data["config"].update(tiling="wide"))
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.output
    assert done.stderr == (
        "note: trials left out (1): a compile setting has no key 'tiling'\n"
    )
    assert "note:" not in done.stdout
