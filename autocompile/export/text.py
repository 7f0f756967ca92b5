"""Safe Python text: values are written as literals, other text only in comments of ASCII."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from autocompile.errors import ExportError

__all__ = ["comment", "literal", "one_line", "program", "quoted"]

_ASCII = {0xB1: "+-", 0xB7: "-", 0xD7: "x", 0x2013: "-", 0x2014: "-", 0x2192: "->"}


def one_line(text: object) -> str:
    """Text as one line of printable ASCII."""
    plain = " ".join(str(text).translate(_ASCII).split())
    return "".join(c if " " <= c <= "~" else "?" for c in plain)


def comment(text: object) -> str:
    """Text as comment lines with line ends."""
    lines = textwrap.wrap(one_line(text), 86, break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


def quoted(text: str) -> str:
    """An ASCII string literal, in double quotes if that needs no escape."""
    plain = ascii(text)
    return plain if '"' in plain or "\\'" in plain else f'"{plain[1:-1]}"'


def literal(value: Any, indent: str | None = None) -> str:
    """A JSON value as a Python expression.

    ``indent``: of its first line, to write one entry per line; None for a single line.
    """
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({quoted(repr(value))})"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    deeper = None if indent is None else indent + "    "
    if isinstance(value, Mapping):
        items = [f"{quoted(str(k))}: {literal(v, deeper)}" for k, v in value.items()]
        opening, closing = "{}"
    elif isinstance(value, Sequence):
        items = [literal(v, deeper) for v in value]
        opening, closing = "[]"
    else:
        raise ExportError(f"a setting cannot hold a {type(value).__name__}")
    if indent is None or not items:
        return opening + ", ".join(items) + closing
    return opening + "\n" + "".join(f"{deeper}{item},\n" for item in items) + indent + closing


def program(*blocks: str) -> str:
    """Blocks of code as one file, with a formatter's blank lines."""
    text = last = ""
    for block in filter(None, (block.strip("\n") for block in blocks)):
        wide = any(re.search(r"^def ", part, re.MULTILINE) for part in (last, block))
        text += ("\n\n\n" if wide else "\n\n") * bool(text) + block
        last = block
    return text + "\n"
