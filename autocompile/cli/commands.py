"""The command line: parse, call the API, render, exit code. No logic here, and no torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from autocompile import cli
from autocompile.cli.browse import clean, export, list_runs, show
from autocompile.cli.checking import check, doctor, init, verify
from autocompile.cli.help import Short
from autocompile.cli.output import lasting_streams, say
from autocompile.cli.recorder import record
from autocompile.cli.tune import tune
from autocompile.errors import AutocompileError, ExitCode, UsageError
from autocompile.suite.command import suite

# What Typer raises for what it cannot parse.
_Mistake: Any = typer.BadParameter.__base__


class Group(TyperGroup):
    """The program, whose mistakes are all told in the same form."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except _Mistake as error:
            command = error.ctx.command_path if error.ctx else "autocompile"
            raise UsageError(error.format_message(), hint=f"{command} --help") from None


app = typer.Typer(
    name="autocompile",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
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
        bool,
        typer.Option(
            "--version", help="show the version", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Find the fastest torch.compile settings that keep your model right, on this machine.

    \b
    The first command:
      autocompile tune model.py          a file with get_model() and get_inputs()
      autocompile tune timm:resnet18     a model by its name, without a file
    """


# In the order in which a newcomer needs them.
_PANELS: Mapping[str, Sequence[Callable[..., Any]]] = {
    "Start here": (tune, init, check, doctor),
    "What a run has found": (show, list_runs, export, verify),
    "More": (suite, record, clean),
}
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        _name = _command.__name__.removesuffix("_runs")
        _shows = Short if _command in (tune, suite) else None
        app.command(_name, cls=_shows, rich_help_panel=_panel)(_command)


def _end_with(error: AutocompileError, code: ExitCode) -> NoReturn:
    """Print an error, also on stdout for who has asked for JSON there, and exit."""
    say(f"error: {error.text()}")
    if "--json" in sys.argv:
        fields = {"what": error.what, "details": error.details, "hint": error.hint}
        typer.echo(json.dumps({"error": fields}))
    sys.exit(code)


def main() -> None:
    """The ``autocompile`` command: every failure is a paragraph and an exit code."""
    with lasting_streams():
        _run()


def _run() -> None:
    try:
        app(obj=cli.BEGAN)
    except AutocompileError as error:
        _end_with(error, error.exit_code)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        if {"-v", "--verbose"} & set(sys.argv):
            raise
        defect = AutocompileError(
            f"a defect in autocompile: {type(error).__name__}: {error}",
            "finished trials are safe in the run's folder",
            hint="the same command with -v, and report what it prints",
        )
        _end_with(defect, ExitCode.INTERNAL)
