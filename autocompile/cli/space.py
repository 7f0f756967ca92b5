"""From what was typed, and a file of what is typed often, to a SearchSpace."""

from __future__ import annotations

import contextlib
import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
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
    return SearchSpace(**{**(_of_file(file) if file else {}), **own})


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
    """Values of dimensions, read as if they were typed."""
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
        listed = values if isinstance(values, list) else [values]
        try:
            found[name] = _of_text(dimensions[name], list(map(as_typed, listed)))
            SearchSpace(**{name: found[name]})
        except UsageError as error:
            raise UsageError(f"{path}: {error.what}", *error.details, hint=error.hint) from None
    return found


def as_typed(value: Any) -> str:
    """A value of TOML in the words of the command line; a table is pairs of an ``--option``."""
    if isinstance(value, dict):
        return ",".join(_pairs_of(value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pairs_of(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):  # cpp.simdlen = 256 is a table in a table to TOML
            yield from (f"{name}.{inner}" for inner in _pairs_of(value))
        else:
            yield f"{name}={as_typed(value)}"
