"""Safe Python text: values are written as literals, other text only in comments of ASCII."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from autocompile.errors import ExportError

_ASCII = {0xB1: "+-", 0xB7: "-", 0xD7: "x", 0x2013: "-", 0x2014: "-", 0x2192: "->"}


def one_line(text: object) -> str:
    """Text as one line of printable ASCII."""
    plain = " ".join(str(text).translate(_ASCII).split())
    return "".join(c if " " <= c <= "~" else "?" for c in plain)


def comment(text: object) -> str:
    """Text as comment lines with line ends."""
    lines = textwrap.wrap(
        one_line(text), 86, break_long_words=False, break_on_hyphens=False
    )
    return "".join(f"# {line}\n" for line in lines)


LEAVE_IT = comment("Nothing was found to be faster than eager mode: leave it as it is.")


def quoted(text: str) -> str:
    """An ASCII string literal, in double quotes if that needs no escape."""
    plain = ascii(text)
    return plain if '"' in plain or "\\'" in plain else f'"{plain[1:-1]}"'


def literal(value: Any) -> str:
    """A JSON value as a Python expression."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({quoted(repr(value))})"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{quoted(str(k))}: {literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(literal, value))}]"
    raise ExportError(f"a setting cannot hold a {type(value).__name__}")


def program(*blocks: str) -> str:
    """Blocks of code as one file, an empty line between two."""
    return "\n\n".join(filter(None, (block.strip("\n") for block in blocks))) + "\n"
