"""Commands about runs that there are: ``show``, ``list``, ``compare`` and ``export``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from autocompile.cli import arguments
from autocompile.cli.output import print_or_draw, say, show_result, write
from autocompile.errors import UsageError

__all__ = ["compare", "export", "list_runs", "show"]

_STACKS = ", ".join(get_args(arguments.Format))


def _known(beginning: str) -> list[str]:
    """The runs that a shell may complete to."""
    from autocompile.store import runs

    names = [p.parent.name for p in runs.under.glob("*/run.json")]
    return [n for n in ("last", *sorted(names)) if n.startswith(beginning)]


_run = functools.partial(typer.Argument, autocompletion=_known)
Run = Annotated[str, _run(metavar="RUN", help="a folder, its short name, or last")]


def _loaded(run: str) -> Any:
    """The result of a run on disk; what of it is left out is said on stderr."""
    from autocompile import api

    result = api.load(run)
    if result.notice:
        say(f"note: {result.notice}")
    return result


@arguments.with_options()
def show(
    run: Run = "last",
    as_json: bool = False,
    verbose: bool = False,
    schema: bool = False,
    html: bool = False,
    browse: bool = False,
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


@arguments.with_options(run_dir=("FOLDER", "the folder of the runs, if not ./runs"))
def list_runs(run_dir: Path | None = None, as_json: bool = False) -> None:
    """List the runs under ./runs with their results, the newest last."""
    from autocompile.commands.runs import listed
    from autocompile.report.terminal.checks import render_runs
    from autocompile.store import runs

    rows = listed(run_dir or runs.under)
    print_or_draw(rows, as_json, lambda console: render_runs(rows, console))


@arguments.with_options()
def compare(
    a: Annotated[str, _run(metavar="A", help="a run, or its report.json")],
    b: Annotated[str, _run(metavar="B", help="a run, or its report.json")],
    as_json: bool = False,
) -> None:
    """Compare two runs of a target, also of two machines."""
    from autocompile.commands import runs
    from autocompile.report.terminal.checks import render_comparison

    def report(run: str) -> Any:
        return runs.read_report(Path(run)) if run.endswith(".json") else _loaded(run).to_dict()

    found = runs.compare(report(a), report(b), (a, b))
    print_or_draw(found, as_json, lambda console: render_comparison(found, console))


@arguments.with_options(
    to=("STACK", f"who reads it: {_STACKS}; python if left out"),
    with_cache=("--with-cache", "compile once more and keep the code beside FILE"),
)
def export(
    run: Run = "last",
    to: arguments.Format | None = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="write this file, as tuned.json"),
    ] = None,
    with_cache: bool = False,
    timeout: float = 300.0,
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
