"""Reads results from disk, also those of older and newer versions.

Unknown keys are ignored, and trials with an unknown setting or outcome are left out. A notice
reports both.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from autocompile import __version__
from autocompile.errors import AutocompileError, RunError
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.store.measurement import KNOWN_KEYS

__all__ = ["demand_schema", "notice", "read"]

T = TypeVar("T")

_MOST_NAMED = 8  # trial numbers in a notice
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError)


def demand_schema(what: object, data: Any, newest: int) -> None:
    """Check that this version can read a file, whose name in errors is ``what``."""
    found = data.get("schema") if isinstance(data, dict) else None
    if type(found) is not int or found < 1:
        raise RunError(f"{what} was not written by autocompile: its schema is {found!r}")
    if found > newest:
        environment = data.get("environment")
        version = environment.get("autocompile") if isinstance(environment, dict) else None
        by, least = (f"autocompile {version}", f">={version}") if version else ("a newer one", "")
        raise RunError(
            f"{what} has schema {found} and was written by {by}",
            f"this is autocompile {__version__}, which reads up to schema {newest}",
            hint=f"pip install --upgrade 'torch-autocompile{least}'",
        )


def read(
    paths: Mapping[int, Path], parse: Callable[[Mapping[str, Any]], T], known: Collection[str]
) -> tuple[list[T], list[str]]:
    """Records of finished trials, and sentences about what is ignored or left out.

    Args:
        paths: trial number to ``result.json``, which may not exist yet.
        parse: makes a record from a result without unknown keys.
        known: known keys of a result.
    """
    results = _load(paths)
    usual = _usual(results)
    records: list[T] = []
    ignored: dict[str, None] = {}
    left_out: dict[str, list[int]] = {}
    for number, result in results.items():
        unknown: list[str] = []
        try:
            mine = _only(known, result, unknown)
            if type(mine.get("schema")) is not int:
                raise ValueError(f"the schema is {mine.get('schema')!r}")
            if raw := mine.get("measurement"):
                mine["measurement"] = _only(KNOWN_KEYS, raw, unknown, "measurement.")
            config = mine["config"]
            needed = [key for key in config if key not in usual or config[key] != usual[key]]
            mine["config"] = _only(needed, config, unknown, "config.")
            records.append(parse(mine))
        except RunError:
            raise
        except AutocompileError as error:
            left_out.setdefault(error.what, []).append(number)
        except _DAMAGE as error:
            what = "its result.json is damaged" if result is None else f"in its result.json {error}"
            left_out.setdefault(what, []).append(number)
        else:
            ignored |= dict.fromkeys(unknown)
    facts = [f"{_trials(numbers)} left out: {why}" for why, numbers in left_out.items()]
    if ignored:
        facts.append(f"ignored, since this version does not know it: {', '.join(ignored)}")
    return records, facts


def notice(facts: list[str], environment: Mapping[str, Any]) -> str:
    """A paragraph of the facts of :func:`read` about a run that was made in ``environment``."""
    if not facts:
        return ""
    version = environment.get("autocompile")
    other = version and version != __version__
    made = f"this run was made with autocompile {version}, this is {__version__}; "
    return f"{made if other else ''}{'; '.join(facts)}"


def _load(paths: Mapping[int, Path]) -> dict[int, Any]:
    """The files' contents by trial number; None for invalid JSON."""
    results: dict[int, Any] = {}
    for number, path in paths.items():
        try:
            results[number] = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            results[number] = None
    return results


def _only(
    known: Collection[str], data: Mapping[str, Any], unknown: list[str], prefix: str = ""
) -> dict[str, Any]:
    unknown += [f"{prefix}{key}" for key in data if key not in known]
    return {key: value for key, value in data.items() if key in known}


def _usual(results: Mapping[int, Any]) -> dict[str, Any]:
    """Unknown keys of settings with their default values, from the first plain eager trial."""
    names = CompileConfig.__dataclass_fields__
    for _, result in sorted(results.items()):
        with contextlib.suppress(AutocompileError, *_DAMAGE):
            config = result["config"]
            if CompileConfig(**{k: v for k, v in config.items() if k in names}) == EAGER:
                return {k: v for k, v in config.items() if k not in names}
    return {}


def _trials(numbers: list[int]) -> str:
    """``trial 3 is`` or ``trials 3, 4 and 7 more are``."""
    named = ", ".join(map(str, numbers[:_MOST_NAMED]))
    if more := len(numbers[_MOST_NAMED:]):
        named += f" and {more} more"
    return f"trial {named} is" if len(numbers) == 1 else f"trials {named} are"
