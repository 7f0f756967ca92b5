"""Parts of a document as HTML, for the page and for notebooks; every text in them is escaped."""

from __future__ import annotations

import html
import re

from autocompile.report import text as show
from autocompile.report.document import Span, Table, Text, spans
from autocompile.report.page.figures import Plot

__all__ = ["as_figure", "as_table", "code_block", "escaped", "inline"]

_TAGS = {"code": "<code>{}</code>", "paste": "<code>{}</code>", "strong": "<b>{}</b>", "": "{}"}
_IN_A_FIGURE = re.compile(r"(?<=\d) (?=\d{3}\b|%)")


def escaped(text: object) -> str:
    """Text as one line without markup."""
    return html.escape(show.plain(text))


def inline(text: Text) -> str:
    """Spans as elements of their kind."""
    return "".join(
        _TAGS.get(span.kind, f'<span class="{span.kind}">{{}}</span>').format(_text_of(span))
        for span in spans(text)
        if span.text
    )


def _text_of(span: Span) -> str:
    """Text of the document, in which spaces count and no figure is broken."""
    text = html.escape(show.printable(span.text))
    return text if span.kind in ("code", "paste") else _IN_A_FIGURE.sub("\N{NO-BREAK SPACE}", text)


def code_block(text: str, label: str) -> str:
    """Code with a button that copies it."""
    lines = "\n".join(map(show.printable, text.rstrip("\n").splitlines()))
    button = f'<button type="button" class="copy" aria-label="copy {escaped(label)}">copy</button>'
    return f'<div class="code">{button}<pre><code>{html.escape(lines)}</code></pre></div>'


def as_figure(plot: Plot) -> str:
    """A plot under its title, note and legend."""
    legend = "".join(
        f'<span><span class="mark" style="color: var(--{variable})">{symbol}</span> '
        f"{escaped(name)}</span> "
        for variable, symbol, name in plot.legend
    )
    key = f'<p class="legend">{legend}</p>' if legend else ""
    caption = f"<h3>{escaped(plot.title)}</h3><p>{escaped(plot.note)}</p>{key}"
    kind = ' class="wide"' if plot.is_wide else ""
    figcaption = f"<figcaption>{caption}</figcaption>"
    return f'<figure{kind}>{figcaption}<div class="scroll">{plot.svg}</div></figure>'


def as_table(table: Table) -> str:
    """A table without its title."""

    def cell(i: int, text: Text, tag: str) -> str:
        side = ' class="right"' if i in table.right else ""
        return f"<{tag}{side}>{inline(text)}</{tag}>"

    head = "".join(cell(i, title, "th") for i, title in enumerate(table.titles))
    head = f"<thead><tr>{head}</tr></thead>" if any(table.titles) else ""
    rows = "".join(
        f"<tr>{''.join(cell(i, text, 'td') for i, text in enumerate(row))}</tr>"
        for row in table.rows
    )
    body = f"<table>{head}<tbody>{rows}</tbody></table>"
    return f'<div class="scroll">{body}</div>'
