"""Lines, facts and tables as a terminal or a pipe shows them.

Lines break between facts and never inside a figure; in a pipe a fact or a message is never broken,
so that ``grep`` finds it whole. Text of a trial is never read as markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from autocompile.report import document as parts
from autocompile.report import text as show

__all__ = ["STYLES", "Page"]

_INDENT = 10
_PIPE = 120
"""Columns of a pipe: facts go to the next line from here on."""
_WIDE = 100  # columns for every column of a table
_LEAST = 40  # columns to break a cell in: with fewer it goes below its row
_FIGURE = re.compile(
    r"\[[\d., ]+\]|±? ?[\d.]+ %|\d(?: \d{3}\b)*(?: [a-zA-Zµ]+)?"
    r"|→ autocompile(?: \S+)+"
)
_GLUE = "\ue000"  # stands for a space that must not end a line; private, one cell wide
STYLES = {
    "strong": "bold",
    "good": "bold green",
    "dim": "dim",
    "error": "red",
    "warning": "yellow",
}


def _text(text: parts.Text) -> Text:
    return Text.assemble(*((s.text, STYLES.get(s.kind, "")) for s in parts.spans(text)))


def _head(label: str, kind: str = "") -> Text:
    return Text.assemble("  ", (f"{label:<{_INDENT - 2}}", f"bold {STYLES.get(kind, '')}".strip()))


class Page:
    """Lines with a label on the left, broken only where a terminal asks for it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.breaks = console.is_terminal
        self.width = console.width if self.breaks else _PIPE

    def line(self, text: str | Text = "", style: str = "") -> None:
        """One line as it is, whatever its length."""
        line = Text(text, style) if isinstance(text, str) else text
        line.plain = show.encodable(line.plain, self.console.encoding).rstrip()
        self.console.print(line, soft_wrap=True, highlight=False)

    def hanging(self, head: Text, text: Text) -> None:
        """``text`` behind ``head``, further lines under its first word."""
        room = max(self.width - head.cell_len, 20)
        text.plain = _FIGURE.sub(
            lambda m: m[0].replace(" ", _GLUE) if len(m[0]) <= room else m[0], text.plain
        )
        for number, part in enumerate(text.wrap(self.console, room) if self.breaks else [text]):
            part.plain = part.plain.replace(_GLUE, " ").rstrip()
            self.line(Text.assemble(head if number == 0 else " " * head.cell_len, part))

    def facts(self, head: Text, facts: Iterable[parts.Text]) -> None:
        """Facts with dots between them; a line ends between two facts."""
        text, indent = Text(), head.cell_len
        for fact in map(_text, facts):
            if text and indent + text.cell_len + 3 + fact.cell_len > self.width:
                self.hanging(head, text)
                head, text = Text(" " * indent), Text()
            text = Text.assemble(text, " · ", fact) if text else fact
        self.hanging(head, text)

    def blocks(self, blocks: Iterable[parts.Line | parts.Table]) -> None:
        """Lines and tables; a label that repeats is shown once."""
        before = ""
        for block in blocks:
            if isinstance(block, parts.Table):
                self.table(block)
                before = ""
            else:
                label = "" if block.label == before else block.label
                self.facts(_head(label, block.kind), block.facts)
                before = block.label

    def table(self, table: parts.Table, indent: str = "  ") -> None:
        """Aligned columns, the last one hanging, or below the others where it needs the room."""
        shown = [i for i in range(len(table.titles)) if i != table.wide or self.width >= _WIDE]
        rows = [[_text(row[i]) for i in shown] for row in table.rows]
        pasted = [any(s.kind == "paste" for s in parts.spans(row[-1])) for row in table.rows]
        if any(table.titles):
            rows.insert(0, [Text(table.titles[i], "dim") for i in shown])
            pasted.insert(0, False)
        if table.title:
            self.line(f"{indent}{table.title}", "bold")
        widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
        room = self.width - len(indent) - sum(widths[:-1]) - 3 * (len(widths) - 1)
        for row, is_pasted in zip(rows, pasted, strict=True):
            head, last = Text(indent), row[-1]
            for i, cell, width in zip(shown[:-1], row, widths, strict=False):
                pad = cell.pad_left if i in table.right else cell.pad_right
                pad(width - cell.cell_len)
                head = Text.assemble(head, cell, "   ")
            if self.breaks and last.cell_len > room and (is_pasted or room < _LEAST):
                self.line(head)
                head = Text(f"{indent}    ")
            if is_pasted:
                self.line(Text.assemble(head, last))
            else:
                self.hanging(head, last)
