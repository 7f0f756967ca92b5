"""The command line: parse, call the API, render, exit code. No logic here, and no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from autocompile.cli import arguments, options
from autocompile.cli.defaults import WithDefaults
from autocompile.cli.export import export, loaded
from autocompile.cli.help import Command, Group
from autocompile.cli.output import (
    Stopped,
    interruptible,
    print_or_draw,
    say,
    show_page,
    show_result,
    write,
)
from autocompile.cli.runs import compare, list_runs
from autocompile.cli.tune import tune
from autocompile.cli.verify import verify
from autocompile.errors import AutocompileError, ExitCode, UsageError

__all__ = ["app", "main"]

app = typer.Typer(
    name="autocompile",
    cls=Group,
    help="Find the fastest torch.compile settings that keep your model right, on this machine.",
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


app.command(cls=WithDefaults)(interruptible(tune))


@app.command(cls=Command)
@interruptible
def show(
    run: arguments.Run = "last",
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON schema of report.json, of no run")
    ] = False,
    html: arguments.Html = False,
    browse: arguments.Open = False,
) -> None:
    """Show the report of a run."""
    if schema:
        import importlib.resources

        found = importlib.resources.files("autocompile.report") / "schema.json"
        typer.echo(found.read_text("utf-8"), nl=False)
        return
    if html or browse:
        show_page(loaded(run), browse)
        return
    show_result(loaded(run), run, as_json, verbose)


app.command("list", cls=Command)(interruptible(list_runs))
for _command in (compare, export, verify):
    app.command(cls=Command)(interruptible(_command))


@app.command(cls=Command)
@interruptible
def check(
    target: arguments.Target,
    phase: arguments.Phase = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="of the inputs")] = 4,
    device: arguments.Device = None,
    timeout: arguments.Timeout = arguments.TIMEOUT_S,
    tolerance: arguments.Tolerance = None,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Run TARGET eagerly and under plain torch.compile(), and compare."""
    from autocompile.commands import diagnose
    from autocompile.report.terminal import checks

    phases = options.words(phase)
    found = diagnose.check(target, phases, batch_size, device, timeout, tolerance)
    print_or_draw(found, as_json, lambda console: checks.render_check(found, console, verbose))
    if not all(row["outcome"] == "ok" for row in found["phases"].values()):
        raise typer.Exit(ExitCode.GATE)


@app.command(cls=Command)
@interruptible
def doctor(
    backend: Annotated[str | None, typer.Argument(metavar="BACKEND", help="only this one")] = None,
    device: arguments.Device = None,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Say which backends and modes work here, and what the others need."""
    from autocompile.commands import diagnose
    from autocompile.report.terminal import checks

    found = diagnose.doctor(backend, device)
    print_or_draw(found, as_json, lambda console: checks.render_doctor(found, console, verbose))


@app.command(cls=Command)
@interruptible
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="the file to write")] = Path(
        "model.py"
    ),
) -> None:
    """Write a file to start from, with get_model() and get_inputs()."""
    from autocompile.cli.template import TEMPLATE

    if path.exists():
        raise UsageError(f"{path} exists already", hint=f"autocompile check {path}")
    write(path, TEMPLATE)
    typer.echo(f"wrote {path}\nNext    autocompile tune {path}")


def _terminated(signum: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """The ``autocompile`` command: every failure is a paragraph and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdout, sys.stderr):  # a terminal that has no × shows a ? in its place
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    verbose = "-v" in sys.argv or "--verbose" in sys.argv
    try:
        app()
    except AutocompileError as error:
        say(f"error: {error.text()}")
        sys.exit(error.exit_code)
    except (Stopped, KeyboardInterrupt):
        say("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.DONE)
    except Exception as error:
        if verbose:
            raise
        say(
            f"error: a defect in autocompile: {type(error).__name__}: {error}\n"
            "  finished trials are safe in the run's folder\n"
            "  try: the same command with -v, and report what it prints"
        )
        sys.exit(ExitCode.INTERNAL)
