"""Recorded runs are reported and exported as before: each change is a decision."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest
from recorded_runs import RUNS, exported, names, shown, texts

from autocompile.commands.listing import read_report
from autocompile.export import FORMATS
from autocompile.store.record import Outcome

OLDER = sorted(
    (Path(__file__).parent.parent / "studies" / "first_runs").glob("*/*.json")
)


@pytest.mark.parametrize("name", names())
def test_a_recorded_run_is_reported_and_exported_as_before(
    name: str, tmp_path: Path
) -> None:
    """``python tests/recorded_runs.py`` writes the texts anew; say why in data/runs/README.md."""
    expected = {
        path.name: path.read_bytes().decode() for path in (RUNS / name).iterdir()
    }
    found = texts(name, tmp_path)
    assert set(found) == set(expected)
    for file, text in found.items():
        assert text == expected[file], file


def test_the_recorded_runs_are_of_every_kind() -> None:
    kinds = {
        "cpu",
        "interpreters",
        "interrupted",
        "outcomes",
        "rllib",
        "gpu_transformer",
    }
    assert kinds <= set(names())


def test_every_outcome_is_recorded() -> None:
    report = json.loads((RUNS / "outcomes" / "report.json").read_text("utf-8"))
    trials = [trial for phase in report["phases"].values() for trial in phase["trials"]]
    assert {trial["outcome"] for trial in trials} == {
        outcome.value for outcome in Outcome
    }


@pytest.mark.parametrize("path", OLDER, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_report_of_an_older_version_is_still_rendered(path: Path) -> None:
    report = read_report(path)
    assert shown(report, "older", True).count(": measured trials") == len(report.phases)
    assert all(exported(report, to) for to in FORMATS)


def test_no_path_of_a_machine_is_recorded() -> None:
    paths = re.compile(rb"/(tmp|work|root|home)/")
    for archive in RUNS.glob("*.tgz"):
        with tarfile.open(archive) as members:
            for member in members:
                file = members.extractfile(member)
                assert file is None or not paths.search(file.read()), member.name
