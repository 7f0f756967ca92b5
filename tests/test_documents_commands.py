"""The commands of the documents: all are understood, and those about runs are executed."""

from __future__ import annotations

import re
import shlex
import shutil
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from conftest import ROOT
from recorded_runs import RUNS, unpack
from typer.testing import CliRunner

from autocompile.cli.commands import app

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_TYPED = re.compile(r"(?:\$ |- run: |\S*bin/)?autocompile (\w.*)")
_WITHOUT_TORCH = ("show", "list", "export")
REPORTS = ("h100/report.json", "old/report.json", "before.json", "after.json")
"""Files that the pages name as reports."""


def commands(text: str) -> Iterator[list[str]]:
    """What follows ``autocompile`` in lines of code blocks and in code spans, as words."""
    blocks = re.findall(r"```\w*\n(.*?)\n```", text, re.S)
    lines = [
        part
        for block in blocks
        for line in block.splitlines()
        for part in line.split("&&")
    ]
    spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    for line in (*lines, *(" ".join(span.split()) for span in spans)):
        if found := _TYPED.fullmatch(line.strip()):
            yield shlex.split(found[1].split(" | ")[0], comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_is_understood(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, *words in commands(page.read_text("utf-8")):
        # A name alone may be just mentioned.
        if "--help" not in words and (words or name in ("list", "doctor")):
            known[name].make_context(name, words)
        assert name in known


def test_an_unknown_option_or_value_is_not_understood() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    (typed,) = commands("`autocompile tune model.py --effort none`")
    with pytest.raises(Exception, match="none"):
        known[typed[0]].make_context(typed[0], typed[1:])


def test_commands_about_runs_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with a recorded run, which is the only one and so the last."""
    unpack("outcomes", tmp_path)
    (tmp_path / "runs" / "outcomes").rename(tmp_path / "runs" / "net-0001")
    shutil.copytree(
        tmp_path / "runs" / "net-0001", tmp_path / "runs" / "model-0001" / "H100"
    )
    t4 = tmp_path / "runs" / "model-0001" / "T4"
    shutil.copytree(tmp_path / "runs" / "net-0001", t4)
    run = (t4 / "run.json").read_text("utf-8")
    (t4 / "run.json").write_text(run.replace('"a CPU"', '"a T4"'), "utf-8")
    monkeypatch.chdir(tmp_path)
    for path in map(Path, REPORTS):
        path.parent.mkdir(exist_ok=True)
        shutil.copy(RUNS / "outcomes" / "report.json", path)
    other = Path("h100/report.json")
    other.write_text(other.read_text("utf-8").replace('"a CPU"', '"an H100"'), "utf-8")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    texts = [page.read_text("utf-8") for page in PAGES]
    typed = {tuple(words) for text in texts for words in commands(text)}
    ran = set()
    for words in sorted(typed):
        if (
            words[0] in _WITHOUT_TORCH
            and "--with-cache" not in words
            and len(words) > 1
        ):
            words = tuple(
                "last" if word in ("RUN", "A", "B") else word for word in words
            )
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, f"{words}: {done.output}"
            ran.add(words[0])
    assert ran == {"show", "export"}
    assert len(opened) == 1
