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
from autocompile.settings.dimensions import SEARCHED, Dimension
from autocompile.space.space import SearchSpace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["asked", "read_toml"]


def read_toml(path: Path) -> dict[str, Any]:
    """A file of TOML."""
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
        file: in TOML: a list for each dimension; ``"none"`` stands for torch's own choice.
        typed: by parameter of the command: comma lists, as often as the option was typed.
    """
    own: dict[str, Any] = {
        d.asked: _of_text(d, given) for d in SEARCHED if (given := typed.get(d.parameter))
    }
    if file is None:
        return SearchSpace(**own)
    found = _of_file(file)
    try:
        return SearchSpace(**{**found, **own})
    except UsageError as error:
        SearchSpace(**own)  # it may be the flags' fault alone
        raise UsageError(f"with {file}: {error.what}", *error.details, hint=error.hint) from None


def _of_text(d: Dimension, typed: Sequence[str]) -> tuple[Any, ...]:
    if tuple in d.kinds:
        return tuple(map(_pairs, typed))
    if bool in d.kinds:
        none = {"none": None} if type(None) in d.kinds else {}
        return options.choices(d.flag, typed, {**none, "true": True, "false": False})
    return options.integers(d.flag, typed) if int in d.kinds else options.words(typed)


def _pairs(text: str) -> tuple[tuple[str, Any], ...]:
    """``cpp_wrapper=true,cpp.simdlen=256`` as pairs; ``none`` for no options."""
    if text.strip().lower() == "none":
        return ()
    pairs = []
    for part in options.words((text,)):
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


def _of_file(path: Path) -> dict[str, tuple[Any, ...]]:
    dimensions = {d.asked: d for d in SEARCHED}
    found: dict[str, tuple[Any, ...]] = {}
    for name, values in read_toml(path).items():
        if name not in dimensions:
            close = difflib.get_close_matches(name, dimensions, 1)
            raise UsageError(
                f"{path}: unknown key {name!r}",
                f"there are: {', '.join(sorted(dimensions))}",
                hint=f"{close[0]} = [...]" if close else None,
            )
        listed, kinds = values if isinstance(values, list) else [values], dimensions[name].kinds
        if tuple in kinds:
            found[name] = tuple(_options(path, each) for each in listed)
        else:
            has_none = type(None) in kinds
            found[name] = tuple(None if v == "none" and has_none else v for v in listed)
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
