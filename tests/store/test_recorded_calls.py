"""Files of calls: what is written is read, and a damaged one is one paragraph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autocompile.errors import AutocompileError
from autocompile.store.recorded_calls import MOST, RecordedCalls, read_calls

X = {
    "tensor": {"shape": [2, 4], "dtype": "int64", "device": "cpu", "low": 0, "high": 9}
}
CALLS = RecordedCalls(
    "Net", ({"args": [X, {"tuple": [1, "a"]}], "kwargs": {"y": None}},), (0, 0)
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    CALLS.write(tmp_path / "calls.json")
    assert read_calls(tmp_path / "calls.json") == CALLS


def test_a_workload_takes_the_first_calls_only() -> None:
    assert len([*RecordedCalls("Net", CALLS.distinct, (0,) * (MOST + 9))]) == MOST


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 99}, "reads up to 1"),
        ({"schema": None}, "not written by autocompile"),
        ({"order": []}, "order names no call"),
        ({"order": [3]}, "order names no call"),
        ({"order": "0"}, "order is '0'"),
        ({"model": 3}, "model is 3"),
        ({"distinct": [{"args": []}]}, "kwargs is None"),
        ({"distinct": [{"args": [{"code": "x"}], "kwargs": {}}]}, "'code' is no kind"),
        ({"distinct": [{"args": [{"a": 1, "b": 2}], "kwargs": {}}]}, "damaged"),
        (
            {"distinct": [{"args": [{"tensor": {"shape": [-1]}}], "kwargs": {}}]},
            "damaged",
        ),
        (
            {
                "distinct": [
                    {
                        "args": [{"tensor": {"shape": [10**6] * 3, "dtype": "int8"}}],
                        "kwargs": {},
                    }
                ]
            },
            "of shape",
        ),
    ],
)
def test_a_damaged_file_is_one_paragraph(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = tmp_path / "calls.json"
    CALLS.write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(AutocompileError, match=words):
        read_calls(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "import os"])
def test_another_file_is_one_paragraph(tmp_path: Path, text: str) -> None:
    (tmp_path / "calls.json").write_text(text)
    with pytest.raises(AutocompileError):
        read_calls(tmp_path / "calls.json")


def test_a_file_that_is_not_there_is_one_paragraph(tmp_path: Path) -> None:
    with pytest.raises(AutocompileError, match=r"cannot read .*No such file"):
        read_calls(tmp_path / "calls.json")
