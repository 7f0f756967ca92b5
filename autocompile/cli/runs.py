"""Commands about runs that there are: ``show``, ``list``, ``compare`` and ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from autocompile.cli import arguments
from autocompile.cli.output import print_or_draw, say, show_result, write
from autocompile.errors import UsageError

__all__ = ["compare", "export", "list_runs", "show"]

STACKS = ", ".join(get_args(arguments.Format))


def _loaded(run: str) -> Any:
    """The result of a run on disk; what of it is left out is said on stderr."""
    from autocompile import api

    result = api.load(run)
    if result.notice:
        say(f"note: {result.notice}")
    return result


def show(
    run: arguments.Run = "last",
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON schema of report.json, of no run")
    ] = False,
    html: Annotated[
        bool, typer.Option("--html", help="write report.html anew and print its path")
    ] = False,
    browse: Annotated[
        bool, typer.Option("--open", help="the same, and open it in a browser")
    ] = False,
) -> None:
    """Show the report of a run."""
    if schema:
        import importlib.resources

        found = importlib.resources.files("autocompile.report") / "schema.json"
        typer.echo(found.read_text("utf-8"), nl=False)
        return
    result = _loaded(run)
    if not (html or browse):
        show_result(result, run, as_json, verbose)
        return
    path = result.write_html()
    typer.echo(path)
    if browse:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def list_runs(
    run_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="the folder of the runs, if not ./runs")
    ] = None,
    as_json: arguments.Json = False,
) -> None:
    """List the runs under ./runs with their results, the newest last."""
    from autocompile.commands.runs import listed
    from autocompile.report.terminal.runs import render_runs
    from autocompile.store import runs

    rows = listed(run_dir or runs.under)
    print_or_draw(rows, as_json, lambda console: render_runs(rows, console))


def compare(a: arguments.RunA, b: arguments.RunB, as_json: arguments.Json = False) -> None:
    """Compare two runs of a target, also of two machines."""
    from autocompile.commands import runs
    from autocompile.report.terminal.runs import render_comparison

    def report(run: str) -> Any:
        return runs.read_report(Path(run)) if run.endswith(".json") else _loaded(run).to_dict()

    found = runs.compare(report(a), report(b), (a, b))
    print_or_draw(found, as_json, lambda console: render_comparison(found, console))


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
    if with_cache and (not is_json or to not in (None, "json")):
        raise UsageError(
            "--with-cache keeps compiled code beside a .json file, and -o names none",
            hint=f"autocompile export {run} -o tuned.json --with-cache",
        )
    result = _loaded(run)
    say("\n".join(f"warning: {sentence}" for sentence in result.unconfirmed()))
    if output is None:
        typer.echo(result.export(to or "python"), nl=False)
    elif with_cache:
        from autocompile.commands.cache import export_with_cache
        from autocompile.settings.tuned import Tuned

        for line in export_with_cache(Tuned.from_report(result.to_dict()), output, timeout):
            typer.echo(line)
    else:
        write(output, result.export(to or ("json" if is_json else "python")))
        typer.echo(f"wrote {output}")
