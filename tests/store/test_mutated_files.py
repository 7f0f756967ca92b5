"""Files that others send: whatever a field of one is, a command ends with a paragraph or works.

Each field is left out, of another type, negative, nan, infinite, a million long, deep, or a path
that leads out; or there is one of tomorrow. Nothing is written outside, and no process begins.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import recorded_runs
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from typer.testing import CliRunner

import autocompile
from autocompile.cli.commands import app
from autocompile.errors import AutocompileError
from autocompile.settings.tuned import Tuned
from autocompile.store.recorded_calls import read_calls
from autocompile.suite.rows import Member, Suite, rows_of
from autocompile.suite.tables import suite_document, to_csv, to_markdown

DEEP = "a list of lists"  # which json cannot write
MISSING, TOMORROW = object(), object()
VALUES: tuple[Any, ...] = (
    *(MISSING, TOMORROW, DEEP, None, True, 0, -1, 3, 2.5, 1e308, 10**40),
    *(float("nan"), float("inf"), "", "..", "../../etc/x", "cpu", "\0", "\ud800"),
    *("x" * 10**6, [], {}, [[]], [1], {"a": {"b": {}}}),
)
CALL = {"args": [{"tensor": {"shape": [4, 8], "dtype": "float32"}}], "kwargs": {}}

_run = CliRunner()


class _Sent(dict[str, str]):
    """Texts by path, which a failure need not print."""

    def __repr__(self) -> str:
        return "the files"


def _typed(*words: str) -> None:
    """A command whose end is one that a user may see."""
    ended = _run.invoke(app, words)
    if isinstance(ended.exception, AutocompileError):
        return
    if ended.exception and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code != 3, ended.output


def _of_a_run(path: Path, command: int) -> None:
    words = (
        ("show", "runs/cpu"),
        ("show", "runs/cpu", "-v", "--json"),
        ("list",),
        ("export", "runs/cpu", "-o", "out.json", "--force"),
        ("export", "runs/cpu", "--to", "python"),
        ("show", "runs/cpu", "--html", "out.html"),
    )
    _typed(*words[command % len(words)])


def _of_a_report(path: Path, command: int) -> None:
    _typed(*(("show", str(path)), ("export", str(path), "-o", "out.json"))[command % 2])


def _of_settings(path: Path, command: int) -> None:
    if command % 2:
        _typed("export", str(path), "--to", "python")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a machine that is another
        autocompile.apply(torch.nn.Linear(4, 4), path)


def _of_a_suite(path: Path, command: int) -> None:
    suite = Suite.read(path.parent)
    to_csv(suite)
    to_markdown(suite_document(suite))


def _of_calls(path: Path, command: int) -> None:
    read_calls(path)


USES: dict[str, Callable[[Path, int], None]] = {
    "runs/cpu/run.json": _of_a_run,
    "runs/cpu/trials/0001/result.json": _of_a_run,
    "report.json": _of_a_report,
    "tuned.json": _of_settings,
    "of_many/suite.json": _of_a_suite,
    "calls.json": _of_calls,
}


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Files as others would send them, by path, in a folder that is the working one."""
    folder = tmp_path_factory.mktemp("sent") / "inside"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(subprocess, "Popen", _never)
        recorded_runs.unpack("cpu")
        report = autocompile.load("runs/cpu").report
        member = Member(target="net.py", phases=None, batch_sizes=None, folder="net")
        rows = tuple(rows_of(member, "net", report))
        texts = {
            "report.json": (recorded_runs.RUNS / "cpu" / "report.json").read_text(),
            "tuned.json": json.dumps(Tuned.from_report(report).to_dict()),
            "of_many/suite.json": json.dumps(
                Suite(name="x", members=(member,), rows=rows).to_dict()
            ),
            "calls.json": json.dumps(
                {"schema": 1, "model": "Net", "distinct": [CALL], "order": [0, 0]}
            ),
        }
        for name, text in texts.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        yield _Sent((name, Path(name).read_text()) for name in USES)


def _never(*args: Any, **kwargs: Any) -> None:
    raise AssertionError(f"a process began: {args}")


def _places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each field; of a list to the first few."""
    items = data.items() if isinstance(data, dict) else enumerate(data[:4])
    for key, value in items:
        yield (*place, key)
        if isinstance(value, (dict, list)):
            yield from _places(value, (*place, key))


def _mutated(text: str, place: int, value: Any) -> str:
    data = json.loads(text)
    every = [*_places(data)]
    *above, last = every[place % len(every)]
    at = data
    for key in above:
        at = at[key]
    if value is MISSING:
        del at[last]
    elif value is not TOMORROW:
        at[last] = value
    elif isinstance(at, dict):
        at["of_tomorrow"] = 1
    return json.dumps(data).replace(json.dumps(DEEP), "[" * 3000 + "]" * 3000)


def _try_one(sent: dict[str, str], name: str, place: int, value: Any, use: int) -> None:
    path = Path(name)
    outside = sorted(Path("..").iterdir())
    try:
        path.write_text(_mutated(sent[name], place, value))
        with contextlib.suppress(AutocompileError):
            USES[name](path, use)
    finally:
        path.write_text(sent[name])
    assert sorted(Path("..").iterdir()) == outside


_KINDS = {
    "name": some.sampled_from(sorted(USES)),
    "place": some.integers(0, 2000),
    "value": some.sampled_from(VALUES),
    "use": some.integers(0, 5),
}
_QUIET = settings(deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])


@given(**_KINDS)
@settings(_QUIET, max_examples=150)
def test_a_mutated_file_is_a_paragraph(sent: dict[str, str], **kinds: Any) -> None:
    _try_one(sent, **kinds)


@pytest.mark.slow
@given(**_KINDS)
@settings(_QUIET, max_examples=2000, derandomize=False)
def test_two_thousand_mutated_files_are_paragraphs(
    sent: dict[str, str], **kinds: Any
) -> None:
    _try_one(sent, **kinds)
