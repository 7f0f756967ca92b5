"""The command line: parse, call the API, render, exit code. No logic here, and no torch.

Options of tune may have defaults in ``[tool.autocompile]`` of the nearest pyproject.toml.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from autocompile.cli.checks import check, doctor, init, verify
from autocompile.cli.options import Command, Group, Stopped
from autocompile.cli.output import say
from autocompile.cli.record import record
from autocompile.cli.runs import export, list_runs, show
from autocompile.cli.tune import tune
from autocompile.errors import AutocompileError, ExitCode, UsageError
from autocompile.settings.dimensions import SEARCHED

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


app = typer.Typer(
    name="autocompile",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from autocompile import __version__

        typer.echo(f"autocompile {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="show the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Find the fastest torch.compile settings that keep your model right, on this machine."""


app.command(cls=WithDefaults)(tune)
app.command(cls=Command)(show)
app.command("list", cls=Command)(list_runs)
for _command in (export, verify, check, doctor, init, record):
    app.command(cls=Command)(_command)


def _terminated(signum: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def _print_error(what: str, details: Sequence[str] = (), hint: str | None = None) -> None:
    """On stdout, for who has asked for JSON there."""
    if "--json" in sys.argv:
        typer.echo(json.dumps({"error": {"what": what, "details": details, "hint": hint}}))


def main() -> None:
    """The ``autocompile`` command: every failure is a paragraph and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdout, sys.stderr):  # a terminal that has no × shows a ? in its place
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app()
    except AutocompileError as error:
        say(f"error: {error.text()}")
        _print_error(error.what, error.details, error.hint)
        sys.exit(error.exit_code)
    except (Stopped, KeyboardInterrupt):
        say("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.DONE)
    except Exception as error:
        if {"-v", "--verbose"} & set(sys.argv):
            raise
        say(
            f"error: a defect in autocompile: {type(error).__name__}: {error}\n"
            "  finished trials are safe in the run's folder\n"
            "  try: the same command with -v, and report what it prints"
        )
        _print_error(f"a defect in autocompile: {type(error).__name__}: {error}")
        sys.exit(ExitCode.INTERNAL)
