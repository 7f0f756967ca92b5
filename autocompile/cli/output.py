"""What the command line writes: words to stderr, and one result to stdout, drawn or as JSON."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from autocompile.errors import UsageError


def say(text: str) -> None:
    """A paragraph to stderr, in which nothing that a trial has said can steer the terminal."""
    from autocompile.report.text import plain

    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        typer.echo(indent + plain(line), err=True)


def print_or_draw(data: Any, as_json: bool, draw: Callable[[Any], None]) -> None:
    """One JSON document, or what ``draw`` puts on a console."""
    if as_json:
        typer.echo(json.dumps(data, indent=1))
        return
    from rich.console import Console

    class OfAPipe(Console):
        """Whoever reads the output may stop: rich would end with the exit code of an error."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    draw(OfAPipe(highlight=False, soft_wrap=not sys.stdout.isatty()))


def write(path: Path, text: str) -> None:
    """Write a file that the user has named."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def show_result(report: Any, run: str, as_json: bool, verbose: bool) -> None:
    """Print a report; the next command names ``run``."""
    from autocompile.export import to_paste, use_line
    from autocompile.report.terminal import render, render_trials

    run = shlex.quote(run)

    def draw(console: Any) -> None:
        if verbose:
            render_trials(report, console)
        use, then = use_line(report, run), ""
        has_code = any(p.answer.changes_something for p in report.phases.values())
        if has_code and "autocompile export" not in use:
            others = ", ".join(
                f"--to {name}" for name in report.exports if name != "json"
            )
            then = f"autocompile export {run} -o tuned.json        (also: {others})"
        code = to_paste(report)
        render(
            report,
            console,
            code=code,
            use=use,
            next_line=then,
            run=run,
            verbose=verbose,
        )

    print_or_draw(report.to_dict(), as_json, draw)
