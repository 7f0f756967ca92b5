"""The report as one Markdown document.

Text of a trial stands in code spans, or is escaped, so that nothing in it is markup or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autocompile.report import text as show
from autocompile.report.contents import document
from autocompile.report.document import Code, Line, Section, Table, Text, spans

__all__ = ["to_markdown"]

# An underscore between letters or digits is no emphasis, so names stay readable in the source.
_SPECIAL = re.compile(r"([\\`*\[\]<>|~&#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def to_markdown(report: Mapping[str, Any]) -> str:
    """What ``report.json`` holds as ``report.md`` holds it."""
    shown = document(report)
    lines = [f"# {_inline(shown.title)}", ""]
    if shown.status:
        lines += [f"**{shown.status}**", ""]
        lines += [*(f"- {_inline(sentence)}" for sentence in shown.incomplete), ""]
    lines += _table(shown.summary)
    if shown.unusable:
        lines += [f"Not on this machine: {_inline(shown.unusable)}", ""]
    for section in shown.sections:
        lines += _section(section)
    lines += ["## How it was measured", "", shown.method, "", *_table(shown.circumstances)]
    for code in shown.exports:
        lines += [f"## For {_inline(code.title)}", "", *_fenced(code), ""]
    return "\n".join(lines).rstrip() + "\n"


def _inline(text: Text) -> str:
    """Spans of which no character means anything to Markdown or HTML."""
    return "".join(_FORMS.get(span.kind, _escape)(span.text) for span in spans(text) if span.text)


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _code(text: str) -> str:
    """A code span that holds ``text`` whatever it is, also inside a table."""
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _strong(text: str) -> str:
    return f"**{_escape(text)}**"


_FORMS = {"code": _code, "strong": _strong}


def _fenced(code: Code) -> list[str]:
    runs = [len(run) for run in re.findall("`+", code.text)]
    fence = "`" * max(3, max(runs, default=0) + 1)
    return [f"{fence}{code.language}", *map(show.printable, code.text.splitlines()), fence]


def _table(table: Table) -> list[str]:
    """A table; a pipe inside a cell is escaped, which GFM asks for in code spans too."""
    rule = ["--:" if i in table.right else ":--" for i in range(len(table.titles))]
    cells = [[_inline(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    rows = [[_inline(title) for title in table.titles], rule, *cells]
    return [*(f"| {' | '.join(row)} |" for row in rows), "", *_paragraphs(table.notes)]


def _paragraphs(texts: tuple[str, ...]) -> Iterator[str]:
    for text in texts:
        yield from (_inline(text), "")


def _section(section: Section) -> Iterator[str]:
    role = f" ({_inline(section.role)})" if section.role else ""
    yield from (f"## {_inline(section.title)}{role}", "")
    verdict = section.verdict
    origin = f" ({_inline(verdict.origin)})" if verdict.origin else ""
    yield from (f"**{verdict.word}:** {_inline(verdict.text)}{origin}", "")
    lines = [block for block in section.blocks if isinstance(block, Line)]
    for line in lines:
        label = f"{line.label}: " if line.label else ""
        yield f"- {label}{' · '.join(map(_inline, line.facts))}"
    yield from ([""] if lines else [])
    for table in (*section.blocks, *section.trials):
        if isinstance(table, Table):
            yield from (f"### {_inline(table.title)}", "", *_table(table))
