"""``autocompile clean``: caches go, what a run has found stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded_runs import said

from autocompile.execute.job import locked
from autocompile.store.record import RunFolder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run with a compiler cache of 3,000 bytes."""
    monkeypatch.chdir(tmp_path)
    run = RunFolder(Path("runs/net-0001"))
    (run.cache / "0003").mkdir(parents=True)
    (run.cache / "0003" / "code.so").write_bytes(bytes(3000))
    (run.path / "lock").touch()
    run.run_json.write_text("{}")
    return run


def test_caches_go_and_records_stay(folder: RunFolder) -> None:
    assert "net-0001   3.0 kB   would go" in said("clean", "--dry-run")
    assert folder.cache.is_dir()
    assert "freed 3.0 kB" in said("clean")
    assert not folder.cache.exists()
    assert folder.run_json.is_file()
    assert json.loads(said("clean", "--json")) == []


def test_a_run_at_work_keeps_its_cache(folder: RunFolder) -> None:
    with locked(folder):
        (row,) = json.loads(said("clean", "--json"))
    assert (row["removed"], row["bytes"]) == (False, 3000)
    assert folder.cache.is_dir()
