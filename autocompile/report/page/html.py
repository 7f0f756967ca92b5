"""The report as one HTML file, which needs nothing from elsewhere, and as a notebook shows it.

Every text goes through :mod:`autocompile.report.page.markup`, which escapes it. The page's policy
allows its own script only, so that a name that got through would still not run.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from autocompile.report import text as show
from autocompile.report.contents import FAILED, document
from autocompile.report.document import Document, Line, Section, Table, spans
from autocompile.report.page.canvas import Plot, drawing
from autocompile.report.page.figures import of_phase
from autocompile.report.page.markup import (
    as_facts,
    as_figure,
    as_figures,
    as_table,
    code_block,
    escaped,
    inline,
    trials_table,
)
from autocompile.store.record import Record

__all__ = ["as_page", "to_html", "to_notebook"]

_LOG_BYTES, _LOG_LINES = 8192, 30
_NO_PLOTS = "No plots, since matplotlib is missing: pip install matplotlib, then autocompile show"


def to_html(
    report: Mapping[str, Any],
    records: Sequence[Record] = (),
    code: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    """What ``report.json`` holds as ``report.html`` holds it.

    Args:
        report: the content of ``report.json``.
        records: of all phases; without them some plots are left out.
        code: what to paste, by phase.
        folder: of the run, where the logs are; without it they are left out.
    """
    shown = document(report)
    plots = _plots(report, records)
    parts = [
        *_answer(report, shown, code or {}),
        f'<p class="warning">{_NO_PLOTS} RUN --html</p>' if plots is None else "",
    ]
    plots = plots or {}
    for section, (name, phase) in zip(shown.sections, report["phases"].items(), strict=True):
        parts += _section(section, name, phase, plots.get(name, ()), folder)
    parts += [*trials_table(report), *_end(shown)]
    about = (show.target_name(report["target"]), show.machine(report["environment"]))
    return _page(shown, about, parts)


def as_page(shown: Document) -> str:
    """A document as a page of its tables, without plots."""
    parts = [f'<section id="answer">{as_table(shown.answer)}</section>']
    for section in shown.sections:
        title = escaped(section.title)
        parts += [f'<section class="phase" id="phase-{title}"><h2>{title}</h2>']
        parts += [f"<p>{as_facts(section.about)}</p>"]
        for table in (*section.blocks, *section.trials):
            if isinstance(table, Table):
                parts += [f"<h3>{escaped(table.title)}</h3>{as_table(table)}"]
        parts += ["</section>"]
    return _page(shown, (), [*parts, *_end(shown)])


def _page(shown: Document, about: Sequence[str], parts: Iterable[str]) -> str:
    """A whole page around the parts of its body; ``about`` stands below its title."""
    script = _file("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    status = f'<p class="warning"><b>{escaped(shown.status)}</b></p>' if shown.status else ""
    title = "".join(span.text for span in spans(shown.title))
    subtitle = "<p>" + "<br>\n".join(map(escaped, about)) + "</p>" if about else ""
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escaped(title)}</title>",
        f"<style>{_file('style.css')}</style></head><body>",
        f"<header><h1>{inline(shown.title)}</h1>",
        f"{subtitle}{status}</header><main>",
        *parts,
        f"</main><script>{script}</script></body></html>\n",
    ]
    return "\n".join(lines)


def to_notebook(
    report: Mapping[str, Any], records: Sequence[Record] = (), code: Mapping[str, str] | None = None
) -> str:
    """An HTML fragment without scripts: the answer, the finalists, the speed-up over batch size.

    ``code``: of each phase in one line; without it, the name of the setting stands there.
    """
    shown = document(report, full=False, code=code)
    plots = _plots(report, records, Path(str(report.get("run_dir", ""))).name, full=False) or {}
    if len(plots) > 1:
        for name, drawn in plots.items():
            plots[name] = [dataclasses.replace(p, title=f"{name}: {p.title}") for p in drawn]
    status = f"<p><b>{escaped(shown.status)}</b></p>" if shown.status else ""
    figures = "".join(as_figure(plot) for drawn in plots.values() for plot in drawn)
    return (
        f'<div class="autocompile"><style>{_file("notebook.css")}</style>{status}'
        f'{as_table(shown.answer)}<div class="figures">{figures}</div></div>'
    )


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _plots(
    report: Mapping[str, Any], records: Sequence[Record], page: str = "", full: bool = True
) -> dict[str, list[Plot]] | None:
    """The plots of each phase; None without matplotlib."""
    phases = report["phases"].items()
    try:
        with drawing():
            return {n: list(of_phase(n, phase, records, page, full)) for n, phase in phases}
    except ImportError:
        return None


def _answer(report: Mapping[str, Any], shown: Document, code: Mapping[str, str]) -> Iterator[str]:
    """The document's row of each phase, with the code to copy."""
    yield '<section id="answer">'
    for phase, row in zip(report["phases"], shown.answer.rows, strict=True):
        name, gain, confidence, answer = row
        figure, *interval = spans(gain)
        yield f'<article><div class="gain"><h2>{inline(name)}</h2>'
        yield f'<p class="figure {figure.kind}">{escaped(figure.text)}</p>'
        yield f"<p>{inline(tuple(interval))}</p></div><div>"
        if phase in code:
            yield code_block(code[phase], f"code for {phase}")
        else:
            yield f"<p>{inline(answer)}</p>"
        yield f"<p>Confidence: <b>{inline(confidence)}</b></p></div></article>"
    yield "</section>"


def _section(
    section: Section,
    name: str,
    phase: Mapping[str, Any],
    plots: Iterable[Plot],
    folder: Path | None,
) -> Iterator[str]:
    """A phase: facts, plots, batch sizes, and what failed."""
    yield f'<section class="phase" id="phase-{escaped(name)}"><h2>{escaped(section.title)}</h2>'
    yield f"<p>{as_facts(section.about)}</p><dl>"
    label = ""
    for line in section.blocks:
        if isinstance(line, Line):
            facts = as_facts(line.facts)
            if line.kind == "dim":
                items = "".join(f"<li>{inline(fact)}</li>" for fact in line.facts)
                summary = f"<summary>{len(line.facts)} reasons</summary>"
                facts = f"<details>{summary}<ul>{items}</ul></details>"
            yield f"<dt>{escaped(line.label) * (line.label != label)}</dt><dd>{facts}</dd>"
            label = line.label
    yield f"</dl>{as_figures(plots)}"
    for table in section.blocks:
        # Failures follow, with their logs.
        if isinstance(table, Table) and table.title != FAILED:
            yield f"<h3>{escaped(table.title)}</h3>{as_table(table)}"
    yield from _failures(phase, folder)
    yield "</section>"


def _failures(phase: Mapping[str, Any], folder: Path | None) -> Iterator[str]:
    """What failed, by cause, each with the end of a log."""
    groups = [g for g in phase.get("failures") or () if not g.get("answered")]
    if groups:
        yield "<h3>What failed</h3>"
    for group in groups:
        head = (
            f"{group['count']} × <b>{escaped(group['backend'])}</b> "
            f'<span class="error">{escaped(group["outcome"])}</span> in {escaped(group["step"])}: '
            f"{escaped(show.shorten(show.plain(group['message']), 160))}"
        )
        numbers = ", ".join(map(str, group["numbers"]))
        yield f'<details class="failure"><summary>{head}</summary>'
        yield f"<p>{escaped(group['message'])}</p><p>trials {escaped(numbers)}"
        yield f" · log: <code>{escaped(group['log'])}</code></p>" if group.get("log") else "</p>"
        if group.get("log") and folder and (end := _end_of_log(folder, group["log"])):
            yield f'<pre class="log">{html.escape(end)}</pre>'
        yield "</details>"


def _end_of_log(folder: Path, log: str) -> str:
    """The last lines of a trial's log; empty if it is not there any more."""
    path = folder.joinpath("trials", *Path(log).parts[-2:])
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join([show.plain(line) for line in text.splitlines()][-_LOG_LINES:])


def _end(shown: Document) -> Iterator[str]:
    """How it was measured, the machine, and the exports."""
    yield '<section id="machine"><h2>How it was measured</h2>'
    yield f"<p>{escaped(shown.method)}</p>{as_table(shown.circumstances)}"
    for line in shown.whole:
        yield f"<p>{escaped(line.label)}: {as_facts(line.facts)}</p>"
    yield "</section>"
    if shown.exports:
        yield '<section id="exports"><h2>Exports</h2>'
        for name, code in shown.exports.items():
            yield f"<details><summary>{escaped(name)}</summary>{code_block(code, name)}</details>"
        yield "</section>"
