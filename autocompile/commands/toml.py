"""What is read from TOML: the lists of a search space, and any other table."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autocompile.errors import UsageError
from autocompile.settings.option import demand_known
from autocompile.settings.searchspace import BY_NAME, SearchSpace


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a file; a UsageError if it cannot be read."""
    try:
        return parse_toml(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # no TOML, or no text
        raise UsageError(f"{path} is not TOML: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a text; a ValueError if it is none."""
    table: dict[str, Any] = tomllib.loads(text)
    return table


def space_of(path: Path | None, typed: Mapping[str, Any]) -> SearchSpace:
    """The space of a command line; what it names goes before what a file of TOML says.

    Args:
        path: a list for each dimension; ``"none"`` stands for torch's own choice.
        typed: by the names of a SearchSpace.
    """
    lists = _lists_of(path) if path else {}
    try:
        SearchSpace(**lists)
    except UsageError as error:
        what = f"{path}: {error.what}"
        raise UsageError(what, *error.details, hint=error.hint) from None
    return SearchSpace(**{**lists, **typed})


def _lists_of(path: Path) -> dict[str, Any]:
    """The lists of a file, which are those of a SearchSpace."""
    lists = read_toml(path)
    for name, values in lists.items():
        demand_known(f"{path}: key", name, BY_NAME, "{} = [...]")
        kinds = BY_NAME[name].kinds
        if type(None) in kinds and isinstance(values, list):
            lists[name] = [None if value == "none" else value for value in values]
        if tuple in kinds and not _is_list_of_tables(values):
            raise UsageError(
                f"{path}: {name} is not a list of tables whose values are no lists or tables",
                hint=f'{name} = [{{}}, {{ cpp_wrapper = true, "cpp.simdlen" = 256 }}]',
            )
    return lists


def _is_list_of_tables(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(table, dict)
        and not any(isinstance(v, (dict, list)) for v in table.values())
        for table in values
    )
