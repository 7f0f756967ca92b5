"""From what was typed, and a file of what is typed often, to a SearchSpace."""

from __future__ import annotations

import contextlib
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autocompile.cli import options
from autocompile.errors import UsageError
from autocompile.space.space import SearchSpace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["asked"]

_FLAGS = {"true": True, "false": False}

Given = Sequence[str] | None  # comma lists, as often as the option was typed


def asked(
    file: Path | None,
    *,
    backend: Given,
    mode: Given,
    option: Sequence[str],
    batch_size: Given,
    fullgraph: Given,
    dynamic: Given,
    scope: Given,
    memory_format: Given,
    optimizer: Given,
    freezing: Given,
    threads: Given,
    precision: Given = None,
    autocast: Given = None,
    guards: Given = None,
) -> SearchSpace:
    """The space that a command line asks for; what it names goes before what the file says.

    Raises:
        UsageError: a value that cannot be read, or a dimension that does not exist.
    """
    typed: dict[str, tuple[Any, ...] | None] = {
        "backends": options.words(backend),
        "modes": options.words(mode),
        "options": tuple(map(_pairs, option)) or None,
        "batch_sizes": options.integers("--batch-size", batch_size),
        "fullgraph": options.choices("--fullgraph", fullgraph, _FLAGS),
        "dynamic": options.choices("--dynamic", dynamic, {"none": None, **_FLAGS}),
        "scope": options.words(scope),
        "memory_format": options.words(memory_format),
        "optimizer": options.words(optimizer),
        "freezing": options.choices("--freezing", freezing, _FLAGS),
        "threads": options.integers("--threads", threads),
        "precision": options.words(precision),
        "autocast": options.words(autocast),
        "guards": options.words(guards),
    }
    given = {name: values for name, values in typed.items() if values is not None}
    table = _table(file) if file else {}
    every: dict[str, Any] = {**table, **given}
    try:
        return SearchSpace(**every)
    except UsageError as error:
        if not table:
            raise
        SearchSpace(**given)  # it may be the flags' fault alone
        raise UsageError(f"with {file}: {error.what}", *error.details, hint=error.hint) from None


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
            raise UsageError(f"--option {part!r}: a list is no value of an option here")
        pairs.append((name.strip(), read))
    return tuple(pairs)


def _table(path: Path) -> dict[str, tuple[Any, ...]]:
    """A search space in TOML: a list for each dimension; ``"none"`` stands for torch's own choice.

    Raises:
        UsageError: no such file, no TOML, or a dimension that does not exist.
    """
    try:
        read = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from None
    names = SearchSpace.__dataclass_fields__.keys()
    found: dict[str, tuple[Any, ...]] = {}
    for name, values in read.items():
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            raise UsageError(
                f"{path} speaks of {name!r}, which is no dimension",
                f"there are: {', '.join(sorted(names))}",
                hint=f"{close[0]} = [...]" if close else None,
            )
        listed = values if isinstance(values, list) else [values]
        if name == "options":
            found[name] = tuple(_options(path, each) for each in listed)
            continue
        is_none = {"none": None} if name in ("dynamic", "threads") else {}
        found[name] = tuple(is_none.get(v, v) if isinstance(v, str) else v for v in listed)
    return found


def _options(path: Path, table: Any) -> tuple[tuple[str, Any], ...]:
    """One table of options as pairs; ``cpp.simdlen = 256`` is a table in a table to TOML."""
    if not isinstance(table, dict):
        raise UsageError(
            f"options in {path}: {table!r} is no table of names and values",
            hint="options = [{}, { cpp_wrapper = true }]   ({} for none)",
        )
    pairs: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            pairs += [(f"{name}.{inner}", v) for inner, v in _options(path, value)]
        elif isinstance(value, (bool, int, float, str)):
            pairs.append((name, value))
        else:
            raise UsageError(f"options in {path}: {name} = {value!r} is no value of an option")
    return tuple(pairs)
