"""The history of noise floors: kept for each machine, asked for with care."""

from __future__ import annotations

from pathlib import Path

import pytest

from autocompile import noise

HERE = {"device_name": "cpu", "cpu": "A chip", "cores": 2, "torch": "2.13.0"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_usual_floor_is_the_median_of_this_machines_runs() -> None:
    noise.remember(HERE, [0.004, 0.006])
    assert noise.usual(HERE) is None  # two are too few
    noise.remember(HERE, [0.005])
    assert noise.usual(HERE) == 0.005
    assert noise.usual({**HERE, "torch": "2.14.0"}) is None


def test_the_newest_are_kept() -> None:
    noise.remember(HERE, [0.1] * 100)
    noise.remember(HERE, [0.01] * 64)
    assert noise.usual(HERE) == 0.01


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 3}', '{"x": ["a"]}'])
def test_a_torn_history_is_no_history(home: Path, text: str) -> None:
    file = home / "autocompile" / "noise.json"
    file.parent.mkdir()
    file.write_text(text)
    assert noise.usual(HERE) is None
    noise.remember(HERE, [0.004] * 3)
    assert noise.usual(HERE) == 0.004


def test_a_home_that_cannot_be_written_is_no_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    noise.remember(HERE, [0.004])
    assert noise.usual(HERE) is None


def test_only_a_floor_well_above_the_usual_is_worth_a_word() -> None:
    assert noise.unusual(0.02, None) == ""
    assert noise.unusual(0.008, 0.002) == ""  # below 1 % nobody minds
    assert noise.unusual(0.012, 0.01) == ""
    assert "±2.1 % here, usually by ±0.5 %" in noise.unusual(0.021, 0.005)
