"""The report on a terminal or in a pipe.

Lines break between facts and never inside a figure; in a pipe a fact or a message is never broken,
so that ``grep`` finds it whole. Text of a trial is never read as markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from autocompile.report import document as parts
from autocompile.report import text as show
from autocompile.report.contents import document, trial_tables

__all__ = ["render", "render_trials"]

_INDENT = 10
_PIPE = 120
"""Columns of a pipe: facts go to the next line from here on."""
_WIDE = 100  # columns for every column of a table
_FIGURE = re.compile(r"\[[\d., ]+\]|±? ?[\d.]+ %|\d(?: \d{3}\b)*(?: [a-zA-Zµ]+)?")
_GLUE = "\ue000"  # stands for a space that must not end a line; private, one cell wide
_STYLES = {
    "strong": "bold",
    "even": "bold",
    "good": "bold green",
    "bad": "bold red",
    "dim": "dim",
    "error": "red",
    "warning": "yellow",
}


def _text(text: parts.Text) -> Text:
    return Text.assemble(*((s.text, _STYLES.get(s.kind, "")) for s in parts.spans(text)))


def _head(label: str, kind: str = "") -> Text:
    return Text.assemble("  ", (f"{label:<{_INDENT - 2}}", f"bold {_STYLES.get(kind, '')}".strip()))


class _Page:
    """Lines with a label on the left, broken only where a terminal asks for it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.breaks = console.is_terminal
        self.width = console.width if self.breaks else _PIPE

    def line(self, text: str | Text = "", style: str = "") -> None:
        """One line as it is, whatever its length."""
        line = Text(text, style) if isinstance(text, str) else text
        line.plain = show.encodable(line.plain, self.console.encoding)
        self.console.print(line, soft_wrap=True, highlight=False)

    def hanging(self, head: Text, text: Text) -> None:
        """``text`` behind ``head``, further lines under its first word."""
        text.plain = _FIGURE.sub(lambda m: m[0].replace(" ", _GLUE), text.plain)
        room = max(self.width - head.cell_len, 20)
        for number, part in enumerate(text.wrap(self.console, room) if self.breaks else [text]):
            part.plain = part.plain.replace(_GLUE, " ").rstrip()
            self.line(Text.assemble(head if number == 0 else " " * head.cell_len, part))

    def blocks(self, blocks: tuple[parts.Line | parts.Table, ...]) -> None:
        """Lines and tables; a label that repeats is shown once."""
        before = ""
        for block in blocks:
            if isinstance(block, parts.Table):
                self.table(block)
            else:
                self.facts("" if block.label == before else block.label, block)
            before = block.label

    def facts(self, label: str, line: parts.Line) -> None:
        """Facts with dots between them; a line ends between two facts."""
        head, text = _head(label, line.kind), Text()
        for fact in map(_text, line.facts):
            if text and _INDENT + text.cell_len + 3 + fact.cell_len > self.width:
                self.hanging(head, text)
                head, text = _head(""), Text()
            text = Text.assemble(text, " · ", fact) if text else fact
        self.hanging(head, text)

    def table(self, table: parts.Table) -> None:
        """Aligned columns, the last one hanging; titles only where no label says what it is."""
        shown = [i for i in range(len(table.titles)) if i != table.wide or self.width >= _WIDE]
        rows = [[_text(row[i]) for i in shown] for row in table.rows]
        if any(table.titles) and not table.label:
            rows.insert(0, [Text(table.titles[i], "dim") for i in shown])
        widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
        label = table.label
        for row in rows:
            for i, cell, width in zip(shown, row, widths, strict=True):
                if i in table.right:
                    cell.pad_left(width - cell.cell_len)
                elif cell is not row[-1]:
                    cell.pad_right(width - cell.cell_len)
            head = _head(label, table.kind) if table.label else Text("  ")
            for cell in row[:-1]:
                head = Text.assemble(head, cell, "   ")
            self.hanging(head, row[-1])
            label = ""
        for note in table.notes:
            self.line(f"{' ' * (_INDENT if table.label else 2)}{note}", "dim")

    def verdict(self, verdict: parts.Verdict) -> None:
        """The answer; where a setting comes from stands on the right."""
        text = _text(verdict.text)
        if not verdict.origin:
            style = "bold red" if verdict.is_error else "bold"
            self.hanging(Text.assemble("  ", (f"{verdict.word}: ", style)), text)
            return
        text.stylize("bold green")
        origin = Text(verdict.origin, "dim")
        room = min(self.width, _PIPE) - _INDENT - text.cell_len - origin.cell_len
        if room < 3:
            self.hanging(_head(verdict.word), text)
            self.hanging(_head(""), origin)
        else:
            self.line(Text.assemble(_head(verdict.word), text, " " * room, origin))


def render(
    report: Mapping[str, Any],
    console: Console,
    *,
    use: str = "",
    next_line: str = "",
    verbose: bool = False,
) -> None:
    """Print the final report.

    Args:
        report: the dictionary that ``report.json`` holds.
        console: where to; not a terminal means no colour and no broken lines.
        use: one line of code to paste.
        next_line: what to type next.
        verbose: also the machine, the choices that were made, logs and whole messages.
    """
    page, shown = _Page(console), document(report, full=verbose)
    if shown.status:
        page.line(shown.status, "bold red")
        for sentence in shown.incomplete:
            page.hanging(Text("  "), Text(sentence))
        page.line()
    if verbose:
        page.table(shown.circumstances)
        page.line()
    for number, section in enumerate(shown.sections):
        if number:
            page.line()
        role = f"   ({section.role})" if section.role else ""
        page.line(Text.assemble((section.title, "bold"), (role, "dim")))
        page.verdict(section.verdict)
        page.blocks(section.blocks)
    if shown.unusable:
        page.line()
        page.hanging(Text("Not on this machine: ", "bold"), _text(shown.unusable))
    if not shown.sections:
        page.line("Nothing was tuned: no phase was started.")
    if use or next_line:
        page.line()
    for word, line in (("Use", use), ("Next", next_line)):
        if line:  # never broken by us: it is there to be pasted
            page.line(Text.assemble((f"{word:<8}", "bold cyan"), show.plain(line)))


def render_trials(report: Mapping[str, Any], console: Console) -> None:
    """Print every trial of each phase: those with figures best first, then the others."""
    page = _Page(console)
    for name, phase in report["phases"].items():
        for table in trial_tables(phase):
            page.line(f"{show.plain(name)}: {table.title.lower()}", "bold")
            page.table(table)
