"""Objects from JSON and back by the types of their fields, and files of other versions."""

from __future__ import annotations

import functools
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from autocompile import __version__
from autocompile.errors import NEWER, RunError

_hints = functools.cache(get_type_hints)


def made(kind: Any, value: Any, name: str = "it") -> Any:
    """An object of a type from its JSON, or a TypeError or ValueError that calls it ``name``."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):  # of a type and None
        return None if value is None else made(args[0], value, name)
    if origin is Literal and value in args:
        return value
    if origin is list and isinstance(value, (list, tuple)):
        return [made(args[0], each, name) for each in value]
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
        return tuple(made(*each, name) for each in zip(kinds, value, strict=True))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {
            made(args[0], k, name): made(args[1], v, name) for k, v in value.items()
        }
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (
        kind is float and is_number and abs(value) <= sys.float_info.max
    ):  # no nan, no infinity
        return float(value)
    is_one = kind is Any or (isinstance(kind, type) and isinstance(value, kind))
    if is_one and kind is not float and (kind is not int or is_number):
        return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(value, Mapping) and hasattr(kind, "from_dict"):
        return kind.from_dict(value)
    if isinstance(value, Mapping) and is_dataclass(kind):
        return of_fields(kind, value)
    raise ValueError(f"{name} is {reprlib.repr(value)}")


def of_fields(kind: Any, data: Mapping[str, Any]) -> Any:
    """An object of a dataclass from its fields; a key that is not known is a TypeError."""
    hints = _hints(kind)
    return kind(
        **{n: made(hints[n], v, n) if n in hints else v for n, v in data.items()}
    )


def known(kind: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass, without the keys of other versions."""
    return {f.name: data[f.name] for f in fields(kind) if f.name in data}


def plain(value: Any) -> Any:
    """The JSON of an object: what its ``to_dict`` gives, or its fields."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a file in JSON; keys of other versions are left out when it is read."""

    optional: ClassVar[tuple[str, ...]] = ()
    """Keys that are not there where they hold nothing."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Any:
        return of_fields(cls, known(cls, data))

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: plain(getattr(self, f.name)) for f in fields(self)}
        return {
            n: value for n, value in values.items() if value or n not in self.optional
        }


def demand_positive(**figures: float | None) -> None:
    """Raise a ValueError if one of the figures is not above 0; None is not known."""
    for name, value in figures.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value}, and has to be above 0")


def demand_schema(what: object, data: Any, newest: int) -> None:
    """Check that this version can read a file, whose name in errors is ``what``."""
    found = data.get("schema") if isinstance(data, dict) else None
    if type(found) is not int or found < 1:
        raise RunError(
            f"{what} was not written by autocompile: its schema is {found!r}"
        )
    if found > newest:
        raise RunError(
            f"{what} has schema {found}, and autocompile {__version__} reads up to {newest}",
            hint=NEWER,
        )
