"""The parts that a report is made of; the terminal and the page are renderings of them.

Text in them is printable and every figure is formatted: a renderer arranges and escapes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Span:
    """Text of a kind: good, strong, dim, error, warning, code; ``paste`` is unbroken code."""

    text: str
    kind: str = ""


Text = str | Span | tuple[str | Span, ...]
"""Spans in a row; a string is a span of no kind."""


def spans(text: Text) -> tuple[Span, ...]:
    """A text as spans."""
    parts = text if isinstance(text, tuple) else (text,)
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


@dataclass(frozen=True)
class Line:
    """Facts side by side behind a label."""

    label: str
    facts: tuple[Text, ...]
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells, of which the last may be long."""

    title: str
    titles: tuple[str, ...]  # of the columns; all empty where the rows need none
    rows: tuple[tuple[Text, ...], ...]
    right: Collection[int] = ()  # columns that are aligned to the right


@dataclass(frozen=True)
class Section:
    """A phase: what its answer is about, what is known of it, and all trials."""

    title: str
    about: tuple[Text, ...]
    blocks: tuple[Line | Table, ...]
    trials: tuple[Table, ...]


@dataclass(frozen=True)
class Document:
    """A whole report, the answer first."""

    title: Text
    status: str  # of a run that is not complete; else empty
    answer: Table  # a row for each phase: name, gain, confidence, and code or a reason
    sections: tuple[Section, ...]
    method: str  # how it was measured, in sentences
    circumstances: Table
    whole: tuple[Line, ...] = ()  # what concerns all phases
    # Code for other stacks, by format.
    exports: Mapping[str, str] = field(default_factory=dict)
