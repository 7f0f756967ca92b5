"""Commands about runs that there are: ``show``, ``list`` and ``export``."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from autocompile.cli import arguments
from autocompile.cli.output import print_or_draw, say, show_result, write
from autocompile.errors import UsageError

__all__ = ["export", "list_runs", "show"]

_STACKS = ", ".join(get_args(arguments.Format))


def _known(beginning: str) -> list[str]:
    """The runs that a shell may complete to."""
    from autocompile.store import runs

    names = map(runs.name_of, runs.every())
    return [n for n in ("last", *sorted(names)) if n.startswith(beginning)]


_run = functools.partial(typer.Argument, autocompletion=_known)
Runs = Annotated[
    list[str] | None,
    _run(metavar="[RUN]...", help="a folder, its short name, or last; several: of other machines"),
]


def _loaded(run: str) -> Any:
    """The result of a run on disk; what of it is left out is said on stderr."""
    from autocompile import api

    result = api.load(run)
    if result.notice:
        say(f"note: {result.notice}")
    return result


def _report(run: str) -> Any:
    """The report of a run on disk, or of a ``report.json`` such as one of another machine."""
    from autocompile.commands.runs import read_report

    return read_report(Path(run)) if run.endswith(".json") else _loaded(run).to_dict()


@arguments.with_options()
def show(
    run: Runs = None,
    as_json: bool = False,
    verbose: bool = False,
    schema: bool = False,
    html: bool = False,
    browse: bool = False,
) -> None:
    """Show the report of a run, or one table over runs of several machines."""
    if schema:
        import importlib.resources

        found = importlib.resources.files("autocompile.report") / "schema.json"
        typer.echo(found.read_text("utf-8"), nl=False)
        return
    named, written = run or ["last"], html or browse
    if len(named) > 1 or (written and named[0].endswith(".json")):  # the page is of records
        path = _show_table(named, as_json, verbose, written)
    else:
        path = _show_run(named[0], as_json, verbose, written)
    if path is not None:
        typer.echo(path)
    if path is not None and browse:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _show_run(run: str, as_json: bool, verbose: bool, written: bool) -> Path | None:
    """Print a report, or write its page and return the path."""
    if written:
        return Path(_loaded(run).write_html())
    show_result(_report(run), run, as_json, verbose)
    return None


def _show_table(named: list[str], as_json: bool, verbose: bool, written: bool) -> Path | None:
    """Print one table over runs, or write it and return its page's path."""
    from autocompile.commands.runs import by_machine
    from autocompile.report import table
    from autocompile.report.checks import render_table
    from autocompile.store import runs

    reports = {name: _report(name) for name in named}
    found = table.table(by_machine(reports))
    if written:
        folder = runs.under / "table"
        table.write(folder, found)
        return folder / "table.html"
    shown = table.shown(found)
    print_or_draw(found, as_json, lambda console: render_table(shown, console, verbose))
    return None


@arguments.with_options(run_dir=("FOLDER", "the folder of the runs, if not ./runs"))
def list_runs(run_dir: Path | None = None, as_json: bool = False) -> None:
    """List the runs under ./runs with their results, the newest last."""
    from autocompile.commands.runs import listed
    from autocompile.report.checks import render_runs
    from autocompile.store import runs

    rows = listed(run_dir or runs.under)
    print_or_draw(rows, as_json, lambda console: render_runs(rows, console))


@arguments.with_options(
    to=("STACK", f"who reads it: {_STACKS}; python if left out"),
    with_cache=("--with-cache", "compile once more and keep the code beside FILE"),
)
def export(
    run: Runs = None,
    to: arguments.Format | None = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="write this file, as tuned.json"),
    ] = None,
    with_cache: bool = False,
    timeout: float = 300.0,
) -> None:
    """Print the best settings for a training stack, or write a file.

    A .json file holds the settings themselves: autocompile.apply and autocompile.rllib read it. Of
    several runs it holds an entry for each machine. A cache beside it is loaded by them, so that a
    new process does not compile. Trust it like code.
    """
    from autocompile import export as exporting

    named = run or ["last"]
    is_json = output is not None and output.suffix == ".json"
    if with_cache and (not is_json or to not in (None, "json")):
        raise UsageError(
            "--with-cache keeps compiled code beside a .json file, and -o names none",
            hint=f"autocompile export {named[0]} -o tuned.json --with-cache",
        )
    if len(named) > 1:
        if with_cache:
            raise UsageError(
                "--with-cache keeps code that was compiled on this machine, and so takes one run",
                hint=f"autocompile export {named[0]} -o tuned.json --with-cache",
            )
        _export_several(named, to or ("json" if is_json else None), output)
        return
    report = _report(named[0])
    say("\n".join(f"warning: {sentence}" for sentence in exporting.unconfirmed(report)))
    if output is None:
        typer.echo(exporting.export(report, to or "python"), nl=False)
    elif with_cache:
        from autocompile.commands.cache import export_with_cache
        from autocompile.settings.tuned import Tuned

        for line in export_with_cache(Tuned.from_report(report), output, timeout):
            typer.echo(line)
    else:
        write(output, exporting.export(report, to or ("json" if is_json else "python")))
        typer.echo(f"wrote {output}")


def _export_several(named: list[str], to: str | None, output: Path | None) -> None:
    """The settings of runs of several machines, as one file or on stdout."""
    from autocompile.commands.runs import demand_same_target
    from autocompile.export import unconfirmed
    from autocompile.report.text import many
    from autocompile.settings.tuned_set import TunedSet

    if to != "json":
        raise UsageError(
            "code is for one machine, and settings of several are JSON",
            hint=f"autocompile export {shlex.join(named)} -o tuned.json",
        )
    reports = {name: _report(name) for name in named}
    demand_same_target(reports)
    text = TunedSet.from_reports(reports).to_json()
    for name, report in reports.items():
        say("\n".join(f"warning: {name}: {sentence}" for sentence in unconfirmed(report)))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write(output, text)
        typer.echo(f"wrote {output}, for {many(len(reports), 'machine')}")
