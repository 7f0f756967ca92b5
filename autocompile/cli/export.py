"""``autocompile export``: print the best settings, or write them to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from autocompile.cli import arguments
from autocompile.cli.output import say, write
from autocompile.errors import UsageError

__all__ = ["export", "loaded"]

STACKS = ", ".join(get_args(arguments.Format))


def loaded(run: str) -> Any:
    """The result of a run on disk; what of it is left out is said on stderr."""
    from autocompile import api

    result = api.load(run)
    if result.notice:
        say(f"note: {result.notice}")
    return result


def export(
    run: arguments.Run = "last",
    to: Annotated[
        arguments.Format | None,
        typer.Option(metavar="STACK", help=f"who reads it: {STACKS}; python if left out"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="write this file, as tuned.json"),
    ] = None,
    with_cache: Annotated[
        bool, typer.Option("--with-cache", help="compile once more and keep the code beside FILE")
    ] = False,
    timeout: arguments.Timeout = arguments.TIMEOUT_S,
) -> None:
    """Print the best settings for a training stack, or write a file.

    A .json file holds the settings themselves: autocompile.apply and autocompile.rllib read it. A
    cache beside it is loaded by them, so that a new process does not compile. Trust it like code.
    """
    is_json = output is not None and output.suffix == ".json"
    if with_cache and (output is None or not is_json or to not in (None, "json")):
        raise UsageError(
            "--with-cache keeps compiled code beside a .json file, and -o names none",
            hint=f"autocompile export {run} -o tuned.json --with-cache",
        )
    result = loaded(run)
    say("\n".join(f"warning: {sentence}" for sentence in result.unconfirmed()))
    if with_cache and output is not None:
        from autocompile.commands.cache import export_with_cache
        from autocompile.settings.tuned import Tuned

        for line in export_with_cache(Tuned.from_report(result.to_dict()), output, timeout):
            typer.echo(line)
        return
    text = result.export(to or ("json" if is_json else "python"))
    if output is None:
        typer.echo(text, nl=False)
        return
    write(output, text)
    typer.echo(f"wrote {output}")
