from __future__ import annotations

import json
from pathlib import Path

import pytest

from autocompile.errors import RunError
from autocompile.settings.config import CompileConfig
from autocompile.store.files import write_json
from autocompile.store.measurement import Measurement
from autocompile.store.record import Outcome, Record, RunFolder, Step


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
        notes=("a note",),
        detail={"weights_live": True},
    )


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.save(record())
    assert list(folder.records()) == [record()]
    assert folder.numbers() == [3]


def test_a_record_of_an_older_version_does_not_say_when_it_began() -> None:
    data = record().to_dict()
    assert Record.from_dict(data).began == 1e9
    del data["spans"]
    assert Record.from_dict(data).began is None


def test_statistics_come_from_the_raw_times() -> None:
    data = record().to_dict()
    data["measurement"]["compiled_s"] = [0.5] * 8
    assert Record.from_dict(data).measurement.speedup.value == pytest.approx(4.0)  # type: ignore[union-attr]


def test_a_torn_result_is_passed_over_and_the_others_are_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for number in (1, 2, 3):
        folder.save(record(number))
    (folder.trial(2) / "result.json").write_text('{"schema": 1, "numb')
    assert [r.number for r in folder.records()] == [1, 3]


def test_another_schema_is_refused() -> None:
    with pytest.raises(RunError, match="schema 2"):
        Record.from_dict({**record().to_dict(), "schema": 2})


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"old": True})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert json.loads(path.read_text()) == {"old": True}


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot create the folder"):
        RunFolder(tmp_path / "file" / "run").create()


def test_a_folder_without_a_run_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder(tmp_path).read_run()


def test_a_folder_where_a_run_was_killed_at_its_start_is_used_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    (folder.cache / "toolchain").mkdir(parents=True)
    assert folder.holds_something_else()
    (folder.path / "probe").mkdir()
    (folder.path / "probe" / "request.json").write_text("{}")
    assert not folder.holds_something_else()
    (folder.path / "notes.txt").write_text("mine")
    assert folder.holds_something_else()


def test_a_run_that_was_edited_by_hand_is_refused_in_words(tmp_path: Path) -> None:
    run = {
        "schema": 1,
        "plan": {"target": "net.py"},
        "environment": {"torch": "2"},
        "phases": ["f"],
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(RunError, match="was edited: it has no target"):
        RunFolder(tmp_path).read_run()
