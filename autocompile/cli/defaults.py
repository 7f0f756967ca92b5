"""Defaults of options: ``[tool.autocompile]`` in the nearest pyproject.toml that has it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from autocompile.cli.options import Command
from autocompile.cli.output import say
from autocompile.errors import UsageError
from autocompile.settings.dimensions import SEARCHED

__all__ = ["WithDefaults"]

# A run that goes on keeps what it was begun with; these are of the process alone.
_ALSO_RESUMED = {
    *("budget", "trials", "sampler", "timeout", "memory-limit", "jobs", "isolation"),
    *("storage", "run-dir", "progress", "require-speedup"),
}
_DIMENSIONS = {d.flag.lstrip("-") for d in SEARCHED}


class WithDefaults(Command):
    """A command whose options may have defaults in pyproject.toml; what is typed goes before."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing or {"-h", "--help"} & set(args):
            return super().parse_args(ctx, args)
        path, table = _table(Path.cwd())
        params: list[Any] = self.get_params(ctx)
        options = {  # without flags, which could not be switched off again on the command line
            param.opts[0].lstrip("-"): param
            for param in params
            if param.param_type_name == "option" and not param.is_flag
        }
        typed = {arg.partition("=")[0] for arg in args}
        read = {key: _value(options, path, key, value) for key, value in table.items()}
        used = {key: value for key, value in read.items() if not _is_overruled(key, typed)}
        ctx.default_map = {options[key].name: value for key, value in used.items()}
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            name = error.param.name if error.param else None
            key = next((key for key in used if options[key].name == name), None)
            if key is None:
                raise
            raise UsageError(f"{path}: [tool.autocompile] {key}: {error.message}") from None
        if used and not ctx.params.get("quiet") and ctx.params.get("progress") != "none":
            said = " ".join(f"--{key} {_shown(key, value)}" for key, value in used.items())
            say(f"from {path}: {said}")
        return rest


def _shown(key: str, value: Any) -> str:
    """A value as it is printed: a database's URL may hold a password."""
    if key == "storage":
        from autocompile.search.optuna_study import without_password

        return without_password(value)
    return ",".join(value) if isinstance(value, list) else str(value)


def _is_overruled(key: str, typed: set[str]) -> bool:
    """Whether what was typed says as much: the option, a run that goes on, a space, an effort."""
    return (
        f"--{key}" in typed
        or ("--resume" in typed and key not in _ALSO_RESUMED)
        or ("--space" in typed and key in _DIMENSIONS)
        or ("--effort" in typed and key in ("budget", "trials"))
    )


def _table(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """The nearest pyproject.toml upward that has the table, and the table; else an empty one."""
    from autocompile.cli.space import read_toml

    for path in (parent / "pyproject.toml" for parent in (folder, *folder.parents)):
        # One that is not about this tool is passed over, whatever is wrong with it.
        if not path.is_file() or b"tool.autocompile" not in path.read_bytes():
            continue
        table = read_toml(path).get("tool", {}).get("autocompile")
        if isinstance(table, dict):
            return path, table
    return folder / "pyproject.toml", {}


def _value(options: Mapping[str, Any], path: Path, key: str, value: Any) -> Any:
    """A value as the command line would have it.

    Raises:
        UsageError: no such option, or a value that it cannot have; names the file and the key.
    """
    from autocompile.cli.space import as_typed

    where = f"{path}: [tool.autocompile] {key}"
    if key not in options:
        close = difflib.get_close_matches(key, options, 1)
        raise UsageError(
            f"{where}: tune has no option --{key} that takes a value",
            f"there are: {', '.join(sorted(options))}",
            hint=f"{close[0]} = ..." if close else None,
        )
    param, listed = options[key], value if isinstance(value, list) else [value]
    if isinstance(value, list) and not param.multiple:
        raise UsageError(f"{where} is a list, and --{key} takes one value")
    if any(isinstance(part, (dict, list)) for part in listed):
        raise UsageError(f"{where} is not a text, a number or a list of them")
    parts = [as_typed(part) for part in listed]
    if key in ("space", "run-dir"):  # beside the file that names them
        parts = [str(path.parent / part) for part in parts]
    return parts if param.multiple else parts[0]
