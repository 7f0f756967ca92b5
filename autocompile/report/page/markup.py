"""Parts of a document as HTML, for the page and for notebooks; every text in them is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autocompile.report import text as show
from autocompile.report.document import Span, Table, Text, spans
from autocompile.report.facts import repeats_of, trial_remarks
from autocompile.report.page.canvas import Plot

_TAGS = {"code": "<code>{}</code>", "paste": "<code>{}</code>", "strong": "<b>{}</b>", "": "{}"}
_IN_A_FIGURE = re.compile(r"(?<=\d) (?=\d{3}\b|%)")
_NUMBERS = ("#", "batch", "speed-up", "throughput", "compile", "memory")
_TITLES = ("#", "phase", "role", "batch", "outcome", *_NUMBERS[2:], "setting")


def escaped(text: object) -> str:
    """Text as one line without markup."""
    return html.escape(show.plain(text))


def inline(text: Text) -> str:
    """Spans as elements of their kind."""
    return "".join(
        _TAGS.get(span.kind, f'<span class="{span.kind}">{{}}</span>').format(_text(span))
        for span in spans(text)
        if span.text
    )


def _text(span: Span) -> str:
    """Text of the document, in which spaces count and no figure is broken."""
    text = html.escape(show.printable(span.text))
    return text if span.kind in ("code", "paste") else _IN_A_FIGURE.sub("\N{NO-BREAK SPACE}", text)


def as_facts(facts: Iterable[Text]) -> str:
    """Facts in a row with dots between them."""
    return " · ".join(map(inline, facts))


def code_block(text: str, label: str) -> str:
    """Code with a button that copies it."""
    lines = "\n".join(map(show.printable, text.rstrip("\n").splitlines()))
    button = f'<button type="button" class="copy" aria-label="copy {escaped(label)}">copy</button>'
    return f'<div class="code">{button}<pre><code>{html.escape(lines)}</code></pre></div>'


def as_table(table: Table) -> str:
    """A table without its title."""
    sides = [' class="right"' if i in table.right else "" for i in range(len(table.titles))]
    cells = [[inline(cell) for cell in row] for row in table.rows]
    rows = [_row(f"<td{side}>{c}</td>" for side, c in zip(sides, r, strict=True)) for r in cells]
    titles = zip(sides, map(inline, table.titles), strict=True)
    head = _row(f"<th{side}>{title}</th>" for side, title in titles)
    head = f"<thead>{head}</thead>" if any(table.titles) else ""
    return f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def as_figure(plot: Plot) -> str:
    """A plot under its title, note and legend."""
    legend = "".join(
        f'<span><span class="mark" style="color: var(--{variable})">{symbol}</span> '
        f"{escaped(name)}</span> "
        for variable, symbol, name in plot.legend
    )
    key = f'<p class="legend">{legend}</p>' if legend else ""
    caption = f"<h3>{escaped(plot.title)}</h3><p>{escaped(plot.note)}</p>{key}"
    figcaption = f"<figcaption>{caption}</figcaption>"
    return f'<figure>{figcaption}<div class="scroll">{plot.svg}</div></figure>'


def as_figures(plots: Iterable[Plot]) -> str:
    """Plots side by side; empty if there are none."""
    found = "".join(map(as_figure, plots))
    return f'<div class="figures">{found}</div>' if found else ""


def trials_table(report: Mapping[str, Any]) -> Iterator[str]:
    """A section with a row for each trial of the run, which the page's script sorts and filters."""
    trials = [(name, t) for name, p in report["phases"].items() for t in p["trials"]]
    if not trials:
        return
    yield '<section id="trials"><h2>Trials</h2><p><label>Filter <input type="search" '
    yield f'id="filter" placeholder="inductor ok"></label> <output>{len(trials)}</output> of '
    yield f"{len(trials)}</p>"
    sides = {title: ' class="right"' if title in _NUMBERS else "" for title in _TITLES}
    head = _row(f'<th{s}><button type="button">{t}</button></th>' for t, s in sides.items())
    yield f'<div class="scroll"><table class="sortable"><thead>{head}</thead><tbody>'
    repeats = repeats_of(trial for _, trial in trials)
    for phase, trial in sorted(trials, key=lambda item: item[1]["number"]):
        yield _row(_cells(phase, trial, repeats.get(trial["number"], ())))
    yield "</tbody></table></div></section>"


def _cells(
    phase: str, trial: Mapping[str, Any], repeats: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    size, gain, rate = trial.get("batch_size"), trial.get("speedup"), trial.get("throughput")
    compile_s, memory = trial.get("compile_s"), trial.get("peak_memory_bytes")
    outcome = "not tried" if trial.get("answered") else trial["outcome"]
    kind = {"not tried": ' class="dim"', "ok": ""}.get(outcome, ' class="error"')
    each = f"{show.quantity(rate['value'])} {rate.get('unit', '')}" if rate else show.NONE
    yield _number(trial["number"], str(trial["number"]))
    yield f"<td>{escaped(phase)}</td>"
    yield f"<td>{escaped(trial.get('role') or '')}</td>"
    yield _number(size, show.or_dash(size))
    yield f"<td{kind}>{escaped(outcome)}</td>"
    yield _number(gain and gain["value"], show.ratio(gain))
    yield _number(rate and rate["value"], each)
    yield _number(compile_s, show.seconds(compile_s))
    yield _number(memory, show.size(memory))
    remarks = ", ".join(trial_remarks(trial, repeats))
    if trial.get("repeats") is not None:
        remarks = f"of trial {trial['repeats']}"
    tail = f' <span class="dim">({escaped(remarks)})</span>' if remarks else ""
    message = escaped(show.shorten(show.plain(trial.get("message") or ""), 300))
    why = f'<br><span class="dim">{message}</span>' if message else ""
    yield f"<td><code>{escaped(show.label(trial['config']))}</code>{tail}{why}</td>"


def _number(value: float | None, text: str) -> str:
    """A cell that is sorted by its number; one without comes last."""
    key = "" if value is None else f' data-key="{float(value)!r}"'
    return f'<td class="right"{key}>{escaped(text)}</td>'
