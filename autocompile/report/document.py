"""The parts that a report is made of; the terminal and Markdown are renderings of them.

Text in them is printable and every figure is formatted: a renderer arranges and escapes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Code", "Document", "Line", "Section", "Span", "Table", "Text", "Verdict", "spans"]


@dataclass(frozen=True)
class Span:
    """Text of a kind: code, strong, dim, error; of a figure good, bad or even."""

    text: str
    kind: str = ""


Text = str | Span | tuple[str | Span, ...]
"""Spans in a row; a string is a span of no kind."""


def spans(text: Text) -> tuple[Span, ...]:
    """A text as spans."""
    parts = text if isinstance(text, tuple) else (text,)
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


@dataclass(frozen=True)
class Verdict:
    """The answer of a phase; ``origin``: the trial that a setting was found in."""

    word: str
    text: Text
    origin: str = ""
    is_error: bool = False


@dataclass(frozen=True)
class Line:
    """Facts side by side; without a label they continue the line before."""

    label: str
    facts: tuple[Text, ...]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells, of which the last may be long.

    Attributes:
        title: of the whole table.
        titles: of the columns; all empty where the rows need none.
        rows: as many cells each.
        right: the columns that are aligned to the right.
        label: stands before the rows in place of both titles where there is little room.
        kind: of the label.
        wide: a column that a narrow screen leaves out.
        notes: below the rows.
    """

    title: str
    titles: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    right: Collection[int] = ()
    label: str = ""
    kind: str = ""
    wide: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A phase: its answer, what is known of it, and all trials."""

    title: str
    role: str
    verdict: Verdict
    blocks: tuple[Line | Table, ...]
    trials: tuple[Table, ...]


@dataclass(frozen=True)
class Code:
    """Code to copy."""

    title: str
    language: str
    text: str


@dataclass(frozen=True)
class Document:
    """A whole report; ``status`` and ``incomplete`` are empty for a complete run."""

    title: Text
    status: str
    incomplete: tuple[str, ...]
    summary: Table
    sections: tuple[Section, ...]
    unusable: Text
    method: str
    circumstances: Table
    exports: tuple[Code, ...]
