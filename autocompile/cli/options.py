"""Read the values of options: lists, amounts with units. Every mistake is a UsageError."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from autocompile.errors import UsageError

__all__ = ["choices", "fraction", "integers", "number", "numbers", "seconds", "size", "words"]

Value = TypeVar("Value")

_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")
_NONE = {"": 1.0}
_TIME = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZE = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_SIZE |= {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}


def words(given: Iterable[str] | None) -> tuple[str, ...]:
    """Comma lists: ``["a, b", "c"]`` is ``("a", "b", "c")``."""
    parts = (part.strip() for text in given or () for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def choices(option: str, given: Iterable[str], known: Mapping[str, Value]) -> tuple[Value, ...]:
    """Comma lists of known words, as their values."""
    parts = [part.lower() for part in words(given)]
    for part in parts:
        _demand_known(option, part, known)
    return tuple(known[part] for part in parts)


def integers(option: str, given: Iterable[str]) -> tuple[int, ...]:
    """Comma lists of whole numbers."""
    parts = words(given)
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        said = ",".join(parts)
        raise UsageError(f"{option} {said!r} is not a list of whole numbers like 1,4,16") from None


def numbers(option: str, given: Iterable[str] | None, known: Mapping[str, str]) -> dict[str, float]:
    """``["speedup=1.05, max-compile-time=2m"]`` by name; seconds of what is a time.

    Args:
        known: what each is, ``a number`` or ``a duration``.
    """
    found = {}
    for part in words(given):
        name, _, text = part.partition("=")
        _demand_known(option, name, known, "=1")
        units = _TIME if known[name] == "a duration" else _NONE
        expected = f"{known[name]} (try {name}={'60s' if units is _TIME else '1'})"
        found[name] = _amount(f"{option} {name}", text, units, expected, has_zero=True)
    return found


def _demand_known(option: str, part: str, known: Iterable[str], behind: str = "") -> None:
    names = list(known)
    if part not in names:
        close = difflib.get_close_matches(part, names, 1)
        hint = f"{option} {close[0]}{behind}" if close else None
        raise UsageError(f"{option} {part!r} is none of {', '.join(names)}", hint=hint)


def _amount(
    option: str, text: str, units: Mapping[str, float], expected: str, has_zero: bool = False
) -> float:
    match = _AMOUNT.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    value = float(match[1]) * unit if match and unit else math.nan
    if not (value > 0 or (has_zero and value == 0)) or value == math.inf:
        raise UsageError(f"{option} {text!r} is not {expected}")
    return value


# Of one value: each gives a function from what was typed, or a default, to the value. -----------


def seconds(option: str, example: str) -> Callable[[str], float]:
    """A time: ``10m`` is 600 seconds, a bare number is seconds."""
    return lambda text: _amount(option, str(text), _TIME, f"a duration (try {example})")


def size(option: str) -> Callable[[str], int]:
    """A size: ``2GiB`` is 2**31 bytes, a bare number is bytes."""
    return lambda text: int(_amount(option, str(text), _SIZE, "a size (try 2GiB)"))


def number(option: str) -> Callable[[str], float]:
    """A number above 0."""
    return lambda text: _amount(option, str(text), _NONE, "a number above 0 (try 1.05)")


def fraction(option: str) -> Callable[[str], float]:
    """A number above 0 and below 1."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 < number < 1:
            raise UsageError(f"{option} {text!r} is not a number between 0 and 1 like 0.001")
        return number

    return read
