"""The report as one HTML file: it needs no network, and nothing in it comes from elsewhere.

Every text goes through :func:`_text` or :func:`_inline`, which escape it. The page's policy allows
its own script only, so that a name that got through would still not run.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from autocompile.report import text as show
from autocompile.report.contents import FAILED, document
from autocompile.report.document import Document, Line, Section, Table, Text, spans
from autocompile.report.page.canvas import drawing
from autocompile.report.page.figures import Plot, of_phase, of_run
from autocompile.report.page.trials import trials_table
from autocompile.store.record import Record

__all__ = ["to_html"]

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
    script = resources.files(__package__).joinpath("script.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>autocompile: {_text(report['target'].get('spec', '?'))}</title>",
        f"<style>{resources.files(__package__).joinpath('style.css').read_text('utf-8')}</style>",
        "</head><body>",
        *_head(report, shown),
        "<main>",
        *_answer(report, shown, code or {}),
        *(f'<p class="warning">{_NO_PLOTS} RUN --html</p>' for _ in (0,) if plots is None),
    ]
    for section, (name, phase) in zip(shown.sections, report["phases"].items(), strict=True):
        parts += _section(section, name, phase, (plots or {}).get(name, ()), folder)
    parts += [
        *_figures((plots or {}).get("", ()), "Where the time went", "time"),
        *trials_table(report),
        *_end(shown),
        "</main>",
        f"<script>{script}</script></body></html>\n",
    ]
    return "\n".join(parts)


def _plots(report: Mapping[str, Any], records: Sequence[Record]) -> dict[str, list[Plot]] | None:
    """The plots of each phase, and under no name those of the run; None without matplotlib."""
    try:
        with drawing():
            found = {n: list(of_phase(n, p, records)) for n, p in report["phases"].items()}
            return {**found, "": list(of_run(report, records))}
    except ImportError:
        return None


def _text(text: object) -> str:
    return html.escape(show.plain(text))


_TAGS = {"code": "<code>{}</code>", "strong": "<b>{}</b>", "": "{}"}


def _inline(text: Text) -> str:
    """Spans as elements of their kind."""
    return "".join(
        _TAGS.get(span.kind, f'<span class="{span.kind}">{{}}</span>').format(_text_of(span.text))
        for span in spans(text)
        if span.text
    )


def _text_of(text: str) -> str:
    """Text of the document, in which spaces count."""
    return html.escape(show.printable(text))


def _block(text: str, label: str) -> str:
    """Code with a button that copies it."""
    lines = "\n".join(map(show.printable, text.rstrip("\n").splitlines()))
    button = f'<button type="button" class="copy" aria-label="copy {_text(label)}">copy</button>'
    return f'<div class="code">{button}<pre><code>{html.escape(lines)}</code></pre></div>'


def _head(report: Mapping[str, Any], shown: Document) -> Iterator[str]:
    yield f"<header><h1>{_inline(shown.title)}</h1>"
    yield f"<p>{_text(show.target_name(report['target']))}<br>"
    yield f"{_text(show.machine(report['environment']))}</p>"
    if shown.status:
        yield f'<p class="warning"><b>{_text(shown.status)}</b></p>'
    yield "</header>"


def _answer(report: Mapping[str, Any], shown: Document, code: Mapping[str, str]) -> Iterator[str]:
    """The document's row of each phase, with the code to copy."""
    yield '<section id="answer">'
    for phase, row in zip(report["phases"], shown.answer.rows, strict=True):
        name, gain, confidence, answer = row
        figure, *interval = spans(gain)
        yield f'<article><div class="gain"><h2>{_inline(name)}</h2>'
        yield f'<p class="figure {figure.kind}">{_text(figure.text)}</p>'
        yield f"<p>{_inline(tuple(interval))}</p></div><div>"
        yield (
            _block(code[phase], f"code for {phase}")
            if phase in code
            else f"<p>{_inline(answer)}</p>"
        )
        yield f"<p>Confidence: <b>{_inline(confidence)}</b></p></div></article>"
    yield "</section>"


def _section(
    section: Section,
    name: str,
    phase: Mapping[str, Any],
    plots: Iterable[Plot],
    folder: Path | None,
) -> Iterator[str]:
    """A phase: facts, plots, batch sizes, and what failed."""
    about = " · ".join(map(_inline, section.about))
    yield f'<section class="phase" id="phase-{_text(name)}"><h2>{_text(section.title)}</h2>'
    yield f"<p>{about}</p>"
    lines = [block for block in section.blocks if isinstance(block, Line)]
    yield "<dl>" if lines else ""
    for line, above in zip(lines, (None, *lines), strict=False):
        facts = " · ".join(map(_inline, line.facts))
        if line.kind == "dim":
            items = "".join(f"<li>{_inline(fact)}</li>" for fact in line.facts)
            facts = (
                f"<details><summary>{len(line.facts)} reasons</summary><ul>{items}</ul></details>"
            )
        label = "" if above and above.label == line.label else _text(line.label)
        yield f"<dt>{label}</dt><dd>{facts}</dd>"
    yield "</dl>" if lines else ""
    yield from _figures(plots)
    for table in section.blocks:
        # Failures follow, with their logs.
        if isinstance(table, Table) and table.title != FAILED:
            yield f"<h3>{_text(table.title)}</h3>{_table(table)}"
    yield from _failures(phase, folder)
    yield "</section>"


def _figures(plots: Iterable[Plot], title: str = "", name: str = "") -> Iterator[str]:
    found = [_figure(plot) for plot in plots]
    if not found:
        return
    yield f'<section id="{name}"><h2>{title}</h2>' if title else ""
    yield f'<div class="figures">{"".join(found)}</div>'
    yield "</section>" if title else ""


def _figure(plot: Plot) -> str:
    legend = "".join(
        f'<span><span class="mark" style="color: var(--{variable})">{symbol}</span> '
        f"{_text(name)}</span> "
        for variable, symbol, name in plot.legend
    )
    key = f'<p class="legend">{legend}</p>' if legend else ""
    caption = f"<h3>{_text(plot.title)}</h3><p>{_text(plot.note)}</p>{key}"
    return f"<figure><figcaption>{caption}</figcaption>{plot.svg}</figure>"


def _table(table: Table) -> str:
    def cell(i: int, text: Text, tag: str) -> str:
        side = ' class="right"' if i in table.right else ""
        return f"<{tag}{side}>{_inline(text)}</{tag}>"

    head = "".join(cell(i, title, "th") for i, title in enumerate(table.titles))
    head = f"<thead><tr>{head}</tr></thead>" if any(table.titles) else ""
    rows = "".join(
        f"<tr>{''.join(cell(i, text, 'td') for i, text in enumerate(row))}</tr>"
        for row in table.rows
    )
    body = f"<table>{head}<tbody>{rows}</tbody></table>"
    return f'<div class="scroll">{body}</div>'


def _failures(phase: Mapping[str, Any], folder: Path | None) -> Iterator[str]:
    """What failed, by cause, each with the end of a log."""
    groups = [g for g in phase.get("failures") or () if not g.get("answered")]
    if groups:
        yield "<h3>What failed</h3>"
    for group in groups:
        head = (
            f"{group['count']} × <b>{_text(group['backend'])}</b> "
            f'<span class="error">{_text(group["outcome"])}</span> in {_text(group["step"])}: '
            f"{_text(show.shorten(show.plain(group['message']), 160))}"
        )
        numbers = ", ".join(map(str, group["numbers"]))
        yield f'<details class="failure"><summary>{head}</summary>'
        yield f"<p>{_text(group['message'])}</p><p>trials {_text(numbers)}"
        yield f" · log: <code>{_text(group['log'])}</code></p>" if group.get("log") else "</p>"
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
    yield f"<p>{_text(shown.method)}</p>{_table(shown.circumstances)}"
    for line in shown.whole:
        yield f"<p>{_text(line.label)}: {' · '.join(map(_inline, line.facts))}</p>"
    yield "</section>"
    if shown.exports:
        yield '<section id="exports"><h2>Exports</h2>'
        for code in shown.exports:
            yield f"<details><summary>{_text(code.title)}</summary>"
            yield f"{_block(code.text, code.title)}</details>"
        yield "</section>"
