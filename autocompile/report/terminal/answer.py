"""The report of a run on a terminal or in a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from autocompile.report import document as parts
from autocompile.report import text as show
from autocompile.report.contents import document
from autocompile.report.facts import trial_tables
from autocompile.report.terminal.page import STYLES, Page

__all__ = ["render", "render_trials"]


def render(
    report: Mapping[str, Any],
    console: Console,
    *,
    code: Mapping[str, str] | None = None,
    use: str = "",
    next_line: str = "",
    run: str = "",
    verbose: bool = False,
) -> None:
    """Print the final report.

    Args:
        report: the dictionary that ``report.json`` holds.
        console: where to; not a terminal means no colour and no broken lines.
        code: the setting of each phase as code.
        use: one line of code to paste.
        next_line: what to type next.
        run: the run's name for commands.
        verbose: also what lost, what failed, what was left out, and the machine.
    """
    page, shown = Page(console), document(report, verbose, code, run)
    if shown.status:
        page.line(shown.status, "bold red")
        page.line()
    if verbose:
        page.table(shown.circumstances)
        page.line()
    if shown.sections:
        page.table(shown.answer, "")
    else:
        page.line("Nothing was tuned: no phase was started.")
    for section in shown.sections:
        if not section.blocks:
            continue  # the answer says it all
        page.line()
        page.facts(Text.assemble((section.title, "bold"), "   "), section.about)
        page.blocks(section.blocks)
    if shown.whole:
        page.line()
    for line in shown.whole:
        page.facts(Text(f"{line.label}: ", STYLES.get(line.kind, "bold")), line.facts)
    if use or next_line:
        page.line()
    before = ""
    if len(use) + 8 > page.width:  # two things to paste, a line each
        use, _, before = use.partition("     after    ")
    for word, text in (("Use", use), ("after", before), ("Next", next_line)):
        if text:  # never broken by us: it is there to be pasted
            page.line(Text.assemble((f"{word:<8}", "bold cyan"), show.plain(text)))


def render_trials(report: Mapping[str, Any], console: Console) -> None:
    """Print every trial of each phase: those with figures best first, then the others."""
    page = Page(console)
    for name, phase in report["phases"].items():
        for table in trial_tables(phase):
            page.line(f"{show.plain(name)}: {table.title.lower()}", "bold")
            page.table(parts.Table("", table.titles, table.rows, table.right, table.wide))
