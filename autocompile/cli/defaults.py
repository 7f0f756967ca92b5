"""Defaults of options: ``[tool.autocompile]`` in the nearest pyproject.toml that has it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from autocompile.cli.help import Command
from autocompile.errors import UsageError
from autocompile.settings.dimensions import SEARCHED

__all__ = ["WithDefaults"]

# A run that goes on keeps what it was begun with; these are of the process alone.
_ALSO_RESUMED = {
    *("budget", "trials", "timeout", "memory-limit", "jobs", "isolation"),
    *("storage", "run-dir", "progress", "require-speedup"),
}


class WithDefaults(Command):
    """A command whose options may have defaults in pyproject.toml; what is typed goes before."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing or {"-h", "--help"} & set(args):
            return super().parse_args(ctx, args)
        path, table = _table(Path.cwd())
        options = {option: param for param in self.get_params(ctx) if (option := _option(param))}
        read = {key: _value(ctx, options, path, key, value) for key, value in table.items()}
        if "--resume" in args:
            read = {key: value for key, value in read.items() if key in _ALSO_RESUMED}
        typed = {arg.partition("=")[0] for arg in args}
        if "--space" in typed:  # a whole space was typed
            dimensions = {d.parameter for d in SEARCHED}
            read = {k: v for k, v in read.items() if options[k].name not in dimensions}
        if "--effort" in typed:  # and so was its time
            read = {k: v for k, v in read.items() if k not in ("budget", "trials")}
        ctx.default_map = {options[key].name: value for key, value in read.items()}
        rest = super().parse_args(ctx, args)
        _say(ctx, path, {key: table[key] for key in read if _is_used(ctx, options[key])})
        return rest


def _table(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """The nearest pyproject.toml upward that has the table, and the table; else an empty one.

    Raises:
        UsageError: a file on the way cannot be read.
    """
    from autocompile.cli.space import read_toml

    for path in (parent / "pyproject.toml" for parent in (folder, *folder.parents)):
        # One that is not about this tool is passed over, whatever is wrong with it.
        if not path.is_file() or b"tool.autocompile" not in path.read_bytes():
            continue
        tools = read_toml(path).get("tool")
        table = tools.get("autocompile") if isinstance(tools, dict) else None
        if table is not None:
            if not isinstance(table, dict):
                raise UsageError(f"{path}: tool.autocompile is not a table of options")
            return path, table
    return folder / "pyproject.toml", {}


def _option(param: Any) -> str:
    """The name of an option that takes a value, without dashes; empty for flags and arguments.

    A flag could not be switched off again on the command line.
    """
    if param.param_type_name != "option" or param.is_flag:
        return ""
    return str(max(param.opts, key=len)).lstrip("-")


def _value(ctx: Any, options: Mapping[str, Any], path: Path, key: str, value: Any) -> Any:
    """A value as the command line would have it.

    Raises:
        UsageError: no such option, or a value that it cannot have; names the file and the key.
    """
    where = f"{path}: [tool.autocompile] {key}"
    if key not in options:
        close = difflib.get_close_matches(key, options, 1)
        raise UsageError(
            f"{where}: tune has no option --{key} that takes a value",
            f"there are: {', '.join(sorted(options))}",
            hint=f"{close[0]} = ..." if close else None,
        )
    param = options[key]
    if isinstance(value, list) and not param.multiple:
        raise UsageError(f"{where} = {value!r} is a list, and --{key} takes one value")
    parts = [_text(where, part) for part in (value if isinstance(value, list) else [value])]
    if key in ("space", "run-dir"):  # beside the file that names them
        parts = [str(path.parent / part) for part in parts]
    given = parts if param.multiple else parts[0]
    try:
        param.process_value(ctx, given)
        _demand_dimension(param.name, given)
    except UsageError as error:
        raise UsageError(f"{where}: {error.what}", *error.details, hint=error.hint) from None
    except typer.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from None
    return given


def _text(where: str, value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise UsageError(f"{where}: {value!r} is not a text, a number or a list of them")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _demand_dimension(name: str, given: Any) -> None:
    """Check the values of a dimension, which the option itself takes as text."""
    from autocompile.cli.space import asked

    if isinstance(given, list):
        asked(None, {name: given})


def _is_used(ctx: Any, param: Any) -> bool:
    source = ctx.get_parameter_source(param.name)
    return source is not None and source.name == "DEFAULT_MAP"


def _say(ctx: Any, path: Path, used: Mapping[str, Any]) -> None:
    """Where values came from that nobody typed, on stderr with the other progress."""
    if not used or ctx.params.get("quiet") or ctx.params.get("progress") == "none":
        return
    from autocompile.cli.output import say

    listed = (v if isinstance(v, list) else [v] for v in used.values())
    told = [f"--{k} {','.join(map(str, v))}" for k, v in zip(used, listed, strict=True)]
    say(f"from {path}: {' '.join(told)}")
