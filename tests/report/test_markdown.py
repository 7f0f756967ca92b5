from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from autocompile.report.markdown import to_markdown
from autocompile.store.report import Report

SAMPLE = json.loads((Path(__file__).parents[1] / "data" / "report.json").read_text("utf-8"))
HOSTILE = "a | b `code` ``two`` <script>alert(1)</script> \x1b[31mred\x1b[0m\n# heading\\"
SHOWN = "a | b `code` ``two`` <script>alert(1)</script> red # heading\\"


@pytest.fixture
def report() -> dict[str, Any]:
    return copy.deepcopy(SAMPLE)


def tokens(document: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(document)


def tables(document: str) -> list[list[list[str]]]:
    """Every table as rows of cells, code spans and escapes resolved."""
    found: list[list[list[str]]] = []
    for token in tokens(document):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level >= 4:
            parts = [c.content for c in token.children or ()]
            found[-1][-1].append("".join(parts))
    return found


def test_text_of_a_trial_cannot_leave_its_cell(report: dict[str, Any]) -> None:
    phase = report["phases"]["forward_exploration"]
    phase["failures"][0]["message"] = HOSTILE
    phase["trials"][-2]["message"] = HOSTILE
    phase["notes"], phase["reason"], phase["explanation"] = [HOSTILE], HOSTILE, [HOSTILE]
    report["phases"]["optimizer_step"]["reason"] = HOSTILE
    phase["unusable"] = {HOSTILE: HOSTILE}
    phase["confidence"] = {"decided": False, "open": HOSTILE, "command": HOSTILE}
    text = to_markdown(Report.from_dict(report))
    assert "\x1b" not in text
    parsed = tokens(text)
    assert not [t for t in parsed if t.type == "html_block"]
    inline = [c for t in parsed for c in t.children or ()]
    assert not [c for c in inline if c.type == "html_inline"]
    _, _, failures, measured, others, *_ = tables(text)
    assert {len(row) for row in (*failures, *others)} == {4}
    assert {len(row) for row in measured} == {7}
    assert failures[1][3].startswith(f"{SHOWN} · ")
    assert others[-1][-1].endswith(f": {SHOWN}")
    headings = [b for a, b in itertools.pairwise(parsed) if a.type == "heading_open"]
    assert not [h for h in headings if h.content.startswith("heading")]


def test_exports_are_fenced_code_that_cannot_break_out(report: dict[str, Any]) -> None:
    code = 'text = """\n```\n"""\n\tx = 1\n'
    report["exports"] = {"python": code, "json": "{}"}
    fences = [t for t in tokens(to_markdown(Report.from_dict(report))) if t.type == "fence"]
    assert [(f.info, f.content) for f in fences] == [
        ("python", code.replace("\t", " ")),
        ("json", "{}\n"),
    ]
