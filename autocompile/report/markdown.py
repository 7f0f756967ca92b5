"""The report as one Markdown document.

Text of a trial stands in code spans, or is escaped, so that nothing in it is markup or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from autocompile.report import text as show
from autocompile.report.contents import document
from autocompile.report.document import Document, Line, Section, Table, Text, spans
from autocompile.store.report import Report

# An underscore between letters or digits is no emphasis, so names stay readable in the source.
_SPECIAL = re.compile(r"([\\`*\[\]<>|~&#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def to_markdown(report: Report, code: Mapping[str, str] | None = None) -> str:
    """A report as ``report.md`` holds it; ``code``: the settings as code."""
    return as_markdown(document(report, code=code))


def as_markdown(shown: Document) -> str:
    """A document as Markdown."""
    lines = [f"# {_inline(shown.title)}", ""]
    lines += [f"**{shown.status}**", ""] if shown.status else []
    lines += [*_blocks([shown.answer, *shown.whole])]
    for section in shown.sections:
        lines += _section(section)
    lines += ["## How it was measured", "", shown.method, "", *_table(shown.circumstances)]
    for name, text in shown.exports.items():
        runs = [len(run) for run in re.findall("`+", text)]
        fence = "`" * max(3, max(runs, default=0) + 1)
        language = "json" if name == "json" else "python"
        lines += [f"## For {_inline(name)}", "", f"{fence}{language}"]
        lines += [*map(show.printable, text.splitlines()), fence, ""]
    return "\n".join(lines).rstrip() + "\n"


def _inline(text: Text) -> str:
    """Spans of which no character means anything to Markdown or HTML."""
    return "".join(_FORMS.get(s.kind, _escape)(s.text) for s in spans(text) if s.text)


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _strong(text: str) -> str:
    return f"**{_escape(text)}**"


def _code(text: str) -> str:
    """A code span that holds ``text`` whatever it is, also inside a table."""
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


_FORMS = {"code": _code, "paste": _code, "strong": _strong, "good": _strong}


def _table(table: Table) -> list[str]:
    """A table; a pipe inside a cell is escaped, which GFM asks for in code spans too."""
    rule = ["--:" if i in table.right else ":--" for i in range(len(table.titles))]
    cells = [[_inline(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    rows = [[_inline(title) for title in table.titles], rule, *cells]
    return [*(f"| {' | '.join(row)} |" for row in rows), ""]


def _blocks(blocks: Iterable[Line | Table]) -> Iterator[str]:
    """Tables with their headings, and lines as lists."""
    for kind, group in groupby(blocks, key=type):
        for block in group:
            if isinstance(block, Table):
                yield from ([f"### {_inline(block.title)}", ""] if block.title else [])
                yield from _table(block)
            else:
                yield f"- {block.label}: {' · '.join(map(_inline, block.facts))}"
        yield from ([""] if kind is Line else [])


def _section(section: Section) -> Iterator[str]:
    yield from (f"## {_inline(section.title)}", "")
    yield from ([" · ".join(map(_inline, section.about)), ""] if section.about else [])
    yield from _blocks((*section.blocks, *section.trials))
