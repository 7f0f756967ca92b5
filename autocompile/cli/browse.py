"""Commands about runs that there are: ``show``, ``list`` and ``export``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from autocompile.cli import options
from autocompile.cli.output import print_or_draw, say, show_result, write
from autocompile.errors import UsageError
from autocompile.settings.option import FOLDER

Format = Literal["python", "json", "rllib", "accelerate", "transformers", "lightning"]


_RUN = "a folder, its short name, or last; several: of other machines"
Runs = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help=_RUN)]


def _loaded(run: str) -> Any:
    """The result of a run on disk; what of it is left out is said on stderr."""
    from autocompile import api

    result = api.load(run)
    if result.notice:
        say(f"note: {result.notice}")
    return result


def _report(run: str) -> Any:
    """The report of a run on disk, or of a ``report.json`` such as one of another machine."""
    from autocompile.commands.listing import read_report

    return read_report(Path(run)) if run.endswith(".json") else _loaded(run).report


_SCHEMA = "print the JSON schema of report.json, of no run"


def show(
    run: Runs = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
    schema: Annotated[bool, options.switch("--schema", _SCHEMA)] = False,
    html: Annotated[
        bool, options.switch("--html", "write report.html anew, print its path")
    ] = False,
    browse: Annotated[
        bool, options.switch("--open", "the same, and open it in a browser")
    ] = False,
) -> None:
    """Show the report of a run, or one table over several runs."""
    if schema:
        import importlib.resources

        file = importlib.resources.files("autocompile.report") / "schema.json"
        typer.echo(file.read_text("utf-8"), nl=False)
        return
    named = run or ["last"]
    is_page = html or browse
    # The page of one run is of its records, which a report.json alone does not have.
    if len(named) > 1 or (is_page and named[0].endswith(".json")):
        path = _show_table(named, as_json, verbose, is_page)
    elif is_page:
        path = Path(_loaded(named[0]).write_html())
    else:
        path = None
        show_result(_report(named[0]), named[0], as_json, verbose)
    if path is not None:
        typer.echo(path)
    if path is not None and browse:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _show_table(
    named: list[str], as_json: bool, verbose: bool, is_page: bool
) -> Path | None:
    """Print one table over runs, or write it and return its page's path."""
    from autocompile.commands.listing import by_machine
    from autocompile.report import table
    from autocompile.report.terminal import Page
    from autocompile.store import runs

    reports = by_machine({name: _report(name) for name in named})
    if is_page:
        return table.write_table(runs.under / "table", reports)
    shown, found = (
        table.table(reports),
        {name: one.to_dict() for name, one in reports.items()},
    )
    print_or_draw(
        found, as_json, lambda console: Page(console).document(shown, verbose)
    )
    return None


_FOLDER = "the folder of the runs, if not ./runs"


def list_runs(
    run_dir: Annotated[Path | None, options.own(FOLDER, "--run-dir", _FOLDER)] = None,
    as_json: options.Json = False,
) -> None:
    """List the runs under ./runs with their results, the newest last."""
    from autocompile.commands.listing import listed
    from autocompile.report.checks import render_runs
    from autocompile.store import runs

    rows = listed(run_dir or runs.under)
    print_or_draw(rows, as_json, lambda console: render_runs(rows, console))


def clean(
    run_dir: Annotated[Path | None, options.own(FOLDER, "--run-dir", _FOLDER)] = None,
    dry_run: Annotated[
        bool,
        options.switch("--dry-run", "say what would be removed, and remove nothing"),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Remove the compiler caches of runs; records, reports and logs stay."""
    from autocompile.commands.cleaning import cleaned
    from autocompile.report import text
    from autocompile.store import runs

    rows = cleaned(run_dir or runs.under, dry_run)

    def draw(console: Any) -> None:
        for row in rows:
            stays = "would go" if dry_run else "in use, stays"
            state = "removed" if row["removed"] else stays
            console.print(f"{row['name']}   {text.size(row['bytes'])}   {state}")
        freed = sum(row["bytes"] for row in rows if dry_run or row["removed"])
        done = "would free" if dry_run else "freed"
        console.print(f"{done} {text.size(freed)}; records, reports and logs stay")

    print_or_draw(rows, as_json, draw)


_FILE = "write this file, as tuned.json"
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help=_FILE)
]
_STACK = f"who reads it: {', '.join(get_args(Format))}; python if left out"
_CACHE = "compile once more and keep the code beside FILE"


@options.takes([options.named("timeout_s", panel="")])
def export(
    asked: options.Asked,
    run: Runs = None,
    to: Annotated[
        Format | None, typer.Option("--to", metavar="STACK", help=_STACK)
    ] = None,
    output: Output = None,
    with_cache: Annotated[bool, options.switch("--with-cache", _CACHE)] = False,
) -> None:
    """Print the best settings for a training stack, or write a file.

    A .json file holds the settings themselves: autocompile.apply and autocompile.rllib read it. Of
    several runs it holds an entry for each machine. A cache beside it is loaded by them, so that a
    new process does not compile. Trust it like code.
    """
    from autocompile import export as exporting
    from autocompile.commands.listing import demand_same_target
    from autocompile.request import Request
    from autocompile.settings.tuned import Tuned, TunedSet

    timeout_s = Request.of("", options.given(asked)).timeout_s
    named = run or ["last"]
    is_json = output is not None and output.suffix == ".json"
    to = to or ("json" if is_json else None)
    if with_cache and (len(named) > 1 or not is_json or to != "json"):
        raise UsageError(
            "--with-cache keeps code that was compiled on this machine, and so takes one run"
            if len(named) > 1
            else "--with-cache keeps compiled code beside a .json file, and -o names none",
            hint=f"autocompile export {named[0]} -o tuned.json --with-cache",
        )
    reports = {name: _report(name) for name in named}
    for name, report in reports.items():
        of = f"{name}: " if len(named) > 1 else ""
        say(
            "\n".join(
                f"warning: {of}{sentence}" for sentence in exporting.unconfirmed(report)
            )
        )
    if with_cache and output:
        from autocompile.commands.bench import export_with_cache

        for line in export_with_cache(
            Tuned.from_report(reports[named[0]]), output, timeout_s
        ):
            typer.echo(line)
        return
    if len(named) == 1:
        text = exporting.export(reports[named[0]], to or "python")
    elif to == "json":
        demand_same_target(reports)
        text = TunedSet.from_reports(reports).to_json()
    else:
        raise UsageError(
            "code is for one machine, and settings of several are JSON",
            hint=f"autocompile export {shlex.join(reports)} -o tuned.json",
        )
    if output is None:
        typer.echo(text, nl=False)
    else:
        write(output, text)
        typer.echo(
            f"wrote {output}"
            + (f", for {len(named)} machines" if len(named) > 1 else "")
        )
