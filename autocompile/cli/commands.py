"""The command line: parse, call the API, render, exit code. No logic here, and no torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from autocompile.cli.checks import check, doctor, init, verify
from autocompile.cli.options import Command, Group
from autocompile.cli.output import say
from autocompile.cli.runs import export, list_runs, show
from autocompile.cli.tune import tune
from autocompile.errors import AutocompileError, ExitCode

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


for _command in (tune, show, list_runs, export, verify, check, doctor, init):
    app.command(_command.__name__.removesuffix("_runs"), cls=Command)(_command)


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
    except KeyboardInterrupt:
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
