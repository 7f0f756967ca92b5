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
    if get_origin(kind) is not None:
        return _made_of_parts(kind, value, name)
    if kind in (int, float):
        return _number(kind, value, name)
    if kind is Any or (isinstance(kind, type) and isinstance(value, kind)):
        return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(value, Mapping) and hasattr(kind, "from_dict"):
        return kind.from_dict(value)
    if isinstance(value, Mapping) and is_dataclass(kind):
        return of_fields(kind, value)
    raise _unfit(value, name)


def _made_of_parts(kind: Any, value: Any, name: str) -> Any:
    """An object of a type with arguments, such as ``list[int]`` or ``str | None``."""
    origin, args = get_origin(kind), get_args(kind)
    # The only unions in files are of a type and None.
    if origin in (Union, UnionType):
        return None if value is None else made(args[0], value, name)
    if origin is Literal and value in args:
        return value
    if origin is list and isinstance(value, (list, tuple)):
        return [made(args[0], each, name) for each in value]
    if origin is tuple and isinstance(value, (list, tuple)):
        is_of_any_length = args[-1] is Ellipsis
        kinds = args[:1] * len(value) if is_of_any_length else args
        pairs = zip(kinds, value, strict=True)
        return tuple(made(each, part, name) for each, part in pairs)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        keys, values = args
        return {made(keys, k, name): made(values, v, name) for k, v in value.items()}
    raise _unfit(value, name)


def _number(kind: Any, value: Any, name: str) -> Any:
    """A whole number, or any number as a float; neither nan nor infinity, nor a boolean."""
    if isinstance(value, bool):
        raise _unfit(value, name)
    if kind is int and isinstance(value, int):
        return value
    # JSON has 1 for 1.0. What is beyond the largest float is infinity, or a whole number too long;
    # nan is not below anything.
    is_number = isinstance(value, (int, float))
    if kind is float and is_number and abs(value) <= sys.float_info.max:
        return float(value)
    raise _unfit(value, name)


def _unfit(value: Any, name: str) -> ValueError:
    return ValueError(f"{name} is {reprlib.repr(value)}")


def of_fields(kind: Any, data: Mapping[str, Any]) -> Any:
    """An object of a dataclass from its fields; a key that is not known is a TypeError."""
    hints = _hints(kind)
    values = dict(data)
    for name, value in data.items():
        # A key that is not known stays, and the class raises.
        if name in hints:
            values[name] = made(hints[name], value, name)
    return kind(**values)


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
        for name in self.optional:
            if not values[name]:
                del values[name]
        return values


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
