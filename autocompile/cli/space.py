"""From what was typed, and a file of what is typed often, to a SearchSpace."""

from __future__ import annotations

import contextlib
import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.cli import options
from autocompile.errors import UsageError
from autocompile.settings.dimension import Dimension
from autocompile.settings.dimensions import SEARCHED
from autocompile.space.space import SearchSpace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["asked", "read_toml"]


def read_toml(path: Path) -> dict[str, Any]:
    """A file of TOML.

    Raises:
        UsageError: it cannot be read, or is not TOML.
    """
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    return found


def asked(file: Path | None, typed: Mapping[str, Sequence[str] | None]) -> SearchSpace:
    """The space that a command line asks for; what it names goes before what the file says.

    Args:
        file: in TOML.
        typed: by parameter of the command: comma lists, as often as the option was typed.

    Raises:
        UsageError: a value that cannot be read, or a dimension that does not exist.
    """
    read = {d.asked: _values(d, typed.get(d.parameter) or None) for d in SEARCHED}
    given = {name: values for name, values in read.items() if values is not None}
    table = _table(file) if file else {}
    every: dict[str, Any] = {**table, **given}
    try:
        return SearchSpace(**every)
    except UsageError as error:
        if not table:
            raise
        SearchSpace(**given)  # it may be the flags' fault alone
        raise UsageError(f"with {file}: {error.what}", *error.details, hint=error.hint) from None


def _values(d: Dimension, typed: Sequence[str] | None) -> tuple[Any, ...] | None:
    if tuple in d.kinds:
        return None if typed is None else tuple(map(_pairs, typed))
    if bool in d.kinds:
        none = {"none": None} if type(None) in d.kinds else {}
        return options.choices(d.flag, typed, {**none, "true": True, "false": False})
    return options.integers(d.flag, typed) if int in d.kinds else options.words(typed)


def _pairs(text: str) -> tuple[tuple[str, Any], ...]:
    """``cpp_wrapper=true,cpp.simdlen=256`` as pairs; ``none`` for no options."""
    if text.strip().lower() == "none":
        return ()
    pairs = []
    for part in options.words((text,)) or ():
        name, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"--option {part!r} has no value", hint=f"--option {part}=true")
        read: Any = value.strip()
        with contextlib.suppress(ValueError):
            read = json.loads(read.lower())
        if isinstance(read, (list, dict)):
            raise UsageError(f"--option {part!r} is a list or a table, and an option has one value")
        pairs.append((name.strip(), read))
    return tuple(pairs)


def _table(path: Path) -> dict[str, tuple[Any, ...]]:
    """A search space in TOML: a list for each dimension; ``"none"`` stands for torch's own choice.

    Raises:
        UsageError: no such file, no TOML, or a dimension that does not exist.
    """
    read = read_toml(path)
    dimensions = {d.asked: d for d in SEARCHED}
    found: dict[str, tuple[Any, ...]] = {}
    for name, values in read.items():
        if name not in dimensions:
            close = difflib.get_close_matches(name, dimensions, 1)
            raise UsageError(
                f"{path}: unknown key {name!r}",
                f"there are: {', '.join(sorted(dimensions))}",
                hint=f"{close[0]} = [...]" if close else None,
            )
        listed = values if isinstance(values, list) else [values]
        kinds = dimensions[name].kinds
        if tuple in kinds:
            found[name] = tuple(_options(path, each) for each in listed)
            continue
        is_none = {"none": None} if type(None) in kinds else {}
        found[name] = tuple(is_none.get(v, v) if isinstance(v, str) else v for v in listed)
    return found


def _options(path: Path, table: Any) -> tuple[tuple[str, Any], ...]:
    """One table of options as pairs; ``cpp.simdlen = 256`` is a table in a table to TOML."""
    if not isinstance(table, dict):
        raise UsageError(
            f"options in {path}: {table!r} is not a table of names and values",
            hint="options = [{}, { cpp_wrapper = true }]   ({} for none)",
        )
    pairs: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            pairs += [(f"{name}.{inner}", v) for inner, v in _options(path, value)]
        elif isinstance(value, (bool, int, float, str)):
            pairs.append((name, value))
        else:
            raise UsageError(
                f"options in {path}: {name} = {value!r} is not allowed",
                "a value is true, false, a number or a text",
            )
    return tuple(pairs)
