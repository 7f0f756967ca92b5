"""The report of a run on a terminal or in a pipe.

Lines break between facts and never inside a figure; in a pipe a fact or a message is never broken,
so that ``grep`` finds it whole. Text of a trial is never read as markup.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from autocompile.report import document as parts
from autocompile.report import text as show
from autocompile.report.contents import document, trial_tables
from autocompile.store.report import Report

_INDENT = 10
_PIPE = 120  # columns of a pipe: facts go to the next line from here on
_LEAST = 40  # columns to break a cell in: with fewer it goes below its row
_FIGURE = re.compile(
    r"\[[\d., ]+\]|±? ?[\d.]+ %|\d(?: \d{3}\b)*(?: [a-zA-Zµ]+)?"
    r"|→ autocompile(?: \S+)+"
)
_GLUE = "\ue000"  # stands for a space that must not end a line; private, one cell wide
_STYLES = {
    "strong": "bold",
    "good": "bold green",
    "dim": "dim",
    "error": "red",
    "warning": "yellow",
}


def render(
    report: Report,
    console: Console,
    *,
    code: Mapping[str, str] | None = None,
    use: str = "",
    next_line: str = "",
    run: str = "",
    verbose: bool = False,
) -> None:
    """Print a report; not a terminal means no colour and no broken lines.

    ``code``: the setting of each phase as code. ``use``: one line of code to paste. ``verbose``:
    also what failed, what was left out, and the machine.
    """
    page = Page(console)
    page.document(document(report, verbose, code, run), verbose)
    if use or next_line:
        page.line()
    before = ""
    if len(use) + 8 > page.width:  # two things to paste, a line each
        use, _, before = use.partition("     after    ")
    for word, text in (("Use", use), ("after", before), ("Next", next_line)):
        if text:  # never broken by us: it is there to be pasted
            page.line(Text.assemble((f"{word:<8}", "bold cyan"), show.plain(text)))


def render_trials(report: Report, console: Console) -> None:
    """Print every trial of each phase: those with figures best first, then the others."""
    page = Page(console)
    for name, phase in report.phases.items():
        for table in trial_tables(phase):
            page.line(f"{show.plain(name)}: {table.title.lower()}", "bold")
            page.table(dataclasses.replace(table, title=""))


class Page:
    """Lines, facts and tables, broken only where a terminal asks for it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.breaks = console.is_terminal
        self.width = console.width if self.breaks else _PIPE

    def document(self, shown: parts.Document, verbose: bool) -> None:
        """The answer, then the sections; ``verbose``: the circumstances before them."""
        if shown.status:
            self.line(shown.status, "bold red")
            self.line()
        if verbose:
            self.table(shown.circumstances)
            self.line()
        if shown.sections:
            self.table(shown.answer, "")
        else:
            self.line("Nothing was tuned: no phase was started.")
        for section in shown.sections:
            if not section.blocks:
                continue  # the answer says it all
            self.line()
            self.facts(Text.assemble((section.title, "bold"), "   "), section.about)
            self.blocks(section.blocks)
        if shown.whole:
            self.line()
        for line in shown.whole:
            self.facts(
                Text(f"{line.label}: ", _STYLES.get(line.kind, "bold")), line.facts
            )

    def line(self, text: str | Text = "", style: str = "") -> None:
        """One line as it is, whatever its length."""
        line = Text(text, style) if isinstance(text, str) else text
        line.plain = show.encodable(line.plain, self.console.encoding).rstrip()
        self.console.print(line, soft_wrap=True, highlight=False)

    def hanging(self, head: Text, text: Text) -> None:
        """``text`` behind ``head``, further lines under its first word."""
        room = max(self.width - head.cell_len, 20)
        text.plain = _FIGURE.sub(
            lambda m: m[0].replace(" ", _GLUE) if len(m[0]) <= room else m[0],
            text.plain,
        )
        for part in text.wrap(self.console, room) if self.breaks else [text]:
            part.plain = part.plain.replace(_GLUE, " ").rstrip()
            self.line(Text.assemble(head, part))
            head = Text(" " * head.cell_len)

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
                continue
            label = "" if block.label == before else block.label
            style = f"bold {_STYLES.get(block.kind, '')}".strip()
            self.facts(
                Text.assemble("  ", (f"{label:<{_INDENT - 2}}", style)), block.facts
            )
            before = block.label

    def table(self, table: parts.Table, indent: str = "  ") -> None:
        """Aligned columns, the last one hanging, or below the others where it needs the room."""
        rows = [[_text(cell) for cell in row] for row in table.rows]
        pasted = [
            any(s.kind == "paste" for s in parts.spans(row[-1])) for row in table.rows
        ]
        if any(table.titles):
            rows.insert(0, [Text(title, "dim") for title in table.titles])
            pasted.insert(0, False)
        if table.title:
            self.line(f"{indent}{table.title}", "bold")
        widths = [
            max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)
        ]
        room = self.width - len(indent) - sum(widths[:-1]) - 3 * (len(widths) - 1)
        for row, is_pasted in zip(rows, pasted, strict=True):
            head, last = Text(indent), row[-1]
            for i, (cell, width) in enumerate(zip(row[:-1], widths, strict=False)):
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


def _text(text: parts.Text) -> Text:
    return Text.assemble(
        *((s.text, _STYLES.get(s.kind, "")) for s in parts.spans(text))
    )
