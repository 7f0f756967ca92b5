"""How an option is declared: all that is said of it stands at one field of a dataclass.

The command line, the signature of :func:`autocompile.tune`, the files that keep options
and the commands that are printed are made of these fields. A field whose type is itself
such a dataclass is a group, like the limits: its options are those of the whole.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path
from typing import Any

from autocompile.errors import UsageError


class Kept(Flag):
    """Where the value of an option is kept for later."""

    NOWHERE = 0
    RUN = auto()  # a run has it from its beginning on: a resumed run cannot change it
    RESUME = auto()  # the printed command that resumes a run repeats it
    VERIFY = auto()  # tuned.json keeps it: ``verify`` judges by what decided
    SUITE = auto()  # suite.json keeps it, and every member of the suite has it
    STATION = auto()  # on a cluster, it is sent to the stations
    LAST = auto()  # run.json says what it was when the run last went on


# The parts of a long --help, in the order in which they stand there.
COMMON = "Common"
CHOSEN = "What may be chosen"
TRIED = "What is tried"
CALLED = "How it is called and compared"
PROCESSES = "Processes"
MACHINES = "Other machines"
OUTPUT = "Output"


# How values are read and written ------------------------------------------------------

_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")
_NO_UNIT = {"": 1.0}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_BYTES |= {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}


@dataclass(frozen=True)
class Kind:
    """A kind of value: its name in ``--help``, and how it is read, written and checked.

    Attributes:
        word: what ``--help`` calls a value; empty for a flag, which has none.
        read: from the option's name and all that was typed for it to the value; None if
            nothing of it is meant for this option. Raises a UsageError.
        write: from a value to what would be typed for it.
        expected: what a value given in Python must be, to follow "takes"; empty if it
            is checked elsewhere.
        accepts: whether a value given in Python is one.
        repeats: whether the option may be typed several times.
        words: all values, where there are a few; shells complete them.
    """

    word: str
    read: Callable[[str, Sequence[str]], Any]
    write: Callable[[Any], list[str]] = lambda value: [str(value)]
    expected: str = ""
    accepts: Callable[[Any], bool] = lambda value: True
    repeats: bool = False
    words: tuple[str, ...] = ()


def words(texts: Iterable[str] | None) -> tuple[str, ...]:
    """Comma lists as words: ``["a, b", "c"]`` is ``("a", "b", "c")``."""
    parts = (part.strip() for text in texts or () for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def demand_known(what: str, word: str, known: Iterable[str], hint: str = "") -> None:
    """Raise a UsageError if a word is none of the known; ``{}`` in the hint is the nearest."""
    names = list(known)
    if word not in names:
        close = difflib.get_close_matches(word, names, 1)
        raise UsageError(
            f"{what} {word!r} is none of {', '.join(names)}",
            hint=hint.format(close[0]) if close and hint else None,
        )


def amount(
    text: str, units: Mapping[str, float] = _NO_UNIT, has_zero: bool = False
) -> float | None:
    """A number with a unit, like ``90s``; None if the text is none, or not above 0."""
    match = _AMOUNT.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    value = float(match[1]) * unit if match and unit else math.nan
    is_one = value < math.inf and (value > 0 or (has_zero and value == 0))
    return value if is_one else None


def seconds(flag: str, text: str) -> float:
    """The seconds of a duration, like ``10m``."""
    value = amount(text, _SECONDS)
    if value is None:
        raise UsageError(f"{flag} {text!r} is not a duration (try 5ms, 90s or 10m)")
    return value


def _bytes(flag: str, text: str) -> int:
    value = amount(text, _BYTES)
    if value is None:
        raise UsageError(f"{flag} {text!r} is not a size (try 2GiB)")
    return int(value)


def _name(flag: str, text: str) -> str:
    if not text.strip():
        raise UsageError(f"{flag} names nothing: its text is empty")
    return text


def _factor(flag: str, text: str) -> float:
    value = amount(text)
    if value is None:
        raise UsageError(f"{flag} {text!r} is not a number above 0 (try 1.05)")
    return value


def _fraction(flag: str, text: str) -> float:
    value = amount(text)
    if value is None or value >= 1:
        raise UsageError(f"{flag} {text!r} is not a number between 0 and 1 like 0.001")
    return value


def _count(least: int) -> Callable[[str, str], int]:
    def read(flag: str, text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?\d+\s*", text) or int(text) < least:
            raise UsageError(f"{flag} {text!r} is not a whole number from {least} up")
        return int(text)

    return read


def integers(flag: str, texts: Sequence[str]) -> tuple[int, ...]:
    """Comma lists of whole numbers."""
    parts = words(texts)
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        text = ",".join(parts)
        raise UsageError(
            f"{flag} {text!r} is not a list of whole numbers like 1,4,16"
        ) from None


def named_numbers(
    flag: str, texts: Sequence[str] | None, known: Mapping[str, str]
) -> dict[str, float]:
    """``["speedup=1.05, max-compile-time=2m"]`` by name; seconds of what is a time.

    Args:
        known: what each is, ``a number`` or ``a duration``.
    """
    values = {}
    for part in words(texts):
        name, _, text = part.partition("=")
        demand_known(flag, name, known, f"{flag} {{}}=1")
        units = _SECONDS if known[name] == "a duration" else _NO_UNIT
        value = amount(text, units, has_zero=True)
        if value is None:
            example = f"{name}=60s" if units is _SECONDS else f"{name}=1"
            raise UsageError(
                f"{flag} {name} {text!r} is not {known[name]} (try {example})"
            )
        values[name] = value
    return values


def one(
    word: str, read: Callable[[str, str], Any], expected: str = "", **more: Any
) -> Kind:
    """A kind that is typed once; of several, the last counts."""
    return Kind(
        word, lambda flag, texts: read(flag, texts[-1]), expected=expected, **more
    )


def choice(word: str, *known: str) -> Kind:
    """One of a few words."""

    def read(flag: str, texts: Sequence[str]) -> str:
        demand_known(flag, texts[-1], known, f"{flag} {{}}")
        return texts[-1]

    expected = f"one of {', '.join(known)}"
    return Kind(word, read, expected=expected, accepts=known.__contains__, words=known)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_above_0(value: Any) -> bool:
    return _is_number(value) and 0 < value < math.inf


def _is_count(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and _is_number(value) and value >= least


def _write_number(value: float) -> list[str]:
    return [f"{value:.15g}"]


_ABOVE_0: Mapping[str, Any] = {
    "accepts": _is_above_0,
    "expected": "a number above 0",
}

NOTHING = Kind("", lambda flag, texts: None)
FLAG = Kind("", lambda flag, texts: True, lambda value: [])
NAME = one("NAME", _name, "a name", accepts=bool)
TIME = one("TIME", seconds, write=_write_number, **_ABOVE_0)
SIZE = one("SIZE", _bytes, **_ABOVE_0)
FACTOR = one("FACTOR", _factor, write=_write_number, **_ABOVE_0)
FRACTION = one(
    "FRACTION",
    _fraction,
    "a number between 0 and 1",
    write=_write_number,
    accepts=lambda value: _is_number(value) and 0 < value < 1,
)
COUNT = one("N", _count(1), "a whole number above 0", accepts=_is_count(1))
SEED = one("N", _count(0), "a whole number from 0 up", accepts=_is_count(0))
FILE = one("FILE", lambda flag, text: Path(text))
FOLDER = one("FOLDER", lambda flag, text: Path(text))
ADDRESS = one("ADDRESS", lambda flag, text: text)
LIST = Kind(
    "LIST", lambda flag, texts: words(texts), lambda v: [",".join(v)], repeats=True
)
PATHS = Kind("PATH", lambda flag, texts: tuple(texts), list, repeats=True)


# What a field says of itself ----------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """What a field says of its option, beside its type and default.

    Attributes:
        flag: its name on the command line. Fields of one flag each take what is theirs.
        kind: how a value is read.
        help: in a few words, for ``--help`` and the documentation of ``tune()``.
        panel: the part of a long ``--help`` that it stands in.
        kept: where its value is kept for later.
        is_typed_only: whether it is an option of the command line alone.
    """

    flag: str
    kind: Kind
    help: str
    panel: str
    kept: Kept
    is_typed_only: bool = False


def option(
    default: Any,
    kind: Kind,
    help: str,
    panel: str,
    flag: str = "",
    kept: Kept = Kept.NOWHERE,
    is_typed_only: bool = False,
) -> Any:
    """A field of a dataclass that is an option.

    Without a flag it is none of the command line. A default that is a type is made anew
    for each object.
    """
    said = {"option": Option(flag, kind, help, panel, kept, is_typed_only)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=said)
    return field(default=default, metadata=said)


@dataclass(frozen=True)
class Declared:
    """An option with its place: the names of the fields that lead to it."""

    path: tuple[str, ...]
    option: Option
    default: Any

    @property
    def name(self) -> str:
        """The name of the parameter of a command: that of the flag, as Python writes it."""
        return self.option.flag.lstrip("-").replace("-", "_")

    def of(self, request: Any) -> Any:
        """The value in an object of the dataclass."""
        for name in self.path:
            request = getattr(request, name)
        return request


def declared(kind: Any, *path: str) -> Iterator[Declared]:
    """The options of a dataclass in the order of its fields; those of a group before its own."""
    for each in dataclasses.fields(kind):
        said = each.metadata.get("option")
        if dataclasses.is_dataclass(each.default_factory):
            yield from declared(each.default_factory, *path, each.name)
        if said is not None and said.flag:
            yield Declared((*path, each.name), said, each.default)


def kept_names(kind: Any, where: Kept) -> tuple[str, ...]:
    """The names of the fields whose values are kept somewhere."""
    found = ((f.name, f.metadata.get("option")) for f in dataclasses.fields(kind))
    return tuple(name for name, said in found if said and said.kept & where)


def nested(values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Values by path as mappings in mappings."""
    found: dict[str, Any] = {}
    for (*groups, name), value in values.items():
        at = found
        for group in groups:
            at = at.setdefault(group, {})
        at[name] = value
    return found


def typed(each: Declared, value: Any) -> list[str]:
    """The words of the command line that give a value; none where it is the default."""
    empty = value is None or value is False or value in ((), {}, "", each.default)
    if empty:
        return []
    flag, kind = each.option.flag, each.option.kind
    if kind is FLAG:
        return [flag]
    return [word for text in kind.write(value) for word in (flag, text)]


def demand_accepted(request: Any) -> None:
    """Check the values of an object's own options; a UsageError names the field."""
    for each in dataclasses.fields(request):
        said, value = each.metadata.get("option"), getattr(request, each.name)
        if said is None or value is None or not said.kind.expected:
            continue
        if not said.kind.accepts(value):
            close = difflib.get_close_matches(str(value), said.kind.words, 1)
            raise UsageError(
                f"{each.name} is {value!r}, and takes {said.kind.expected}",
                hint=f"{each.name}={close[0]!r}" if close else None,
            )
