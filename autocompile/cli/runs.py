"""``autocompile list`` and ``autocompile compare``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from autocompile.cli import arguments, options
from autocompile.cli.export import loaded
from autocompile.cli.output import print_or_draw

__all__ = ["compare", "list_runs"]

_compared = functools.partial(
    typer.Argument, help="a run, or its report.json", autocompletion=options.known_runs
)


def list_runs(
    run_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="the folder of the runs, if not ./runs")
    ] = None,
    as_json: arguments.Json = False,
) -> None:
    """List the runs under ./runs with their results, the newest last."""
    from autocompile.commands.runs import listed
    from autocompile.report.terminal.checks import render_runs
    from autocompile.store import runs

    rows = listed(run_dir or runs.under)
    print_or_draw(rows, as_json, lambda console: render_runs(rows, console))


def compare(
    a: Annotated[str, _compared(metavar="A")],
    b: Annotated[str, _compared(metavar="B")],
    as_json: arguments.Json = False,
) -> None:
    """Compare two runs of a target, also of two machines."""
    from autocompile.commands import compare as comparing
    from autocompile.report.terminal.checks import render_comparison

    def report(run: str) -> dict[str, Any]:
        is_file = run.endswith(".json")
        return comparing.read_report(Path(run)) if is_file else loaded(run).to_dict()

    found = comparing.compare(report(a), report(b), (a, b))
    print_or_draw(found, as_json, lambda console: render_comparison(found, console))
