"""What the command line writes: words to stderr, and one result to stdout, drawn or as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
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

    draw(Console(highlight=False, soft_wrap=not sys.stdout.isatty()))


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """Context in which ``| head`` neither ends a run nor decides its exit code.

    What the encoding of a stream lacks, such as ×, is a ? there.
    """
    usual = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_lasting, usual)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = usual


def _lasting(stream: Any) -> Any:
    """In place of a stream, or itself where it is none that is known."""
    try:
        stream.flush()
        encoding, by_line = stream.encoding, stream.line_buffering
        return _Lasting(
            stream.buffer, encoding, errors="replace", line_buffering=by_line
        )
    except (AttributeError, OSError, ValueError):
        return stream


class _Lasting(io.TextIOWrapper):
    """A text stream whose reader may stop reading: what is written then is lost, and nothing else."""

    def close(self) -> None:
        with contextlib.suppress(ValueError):  # it is closed
            self.flush()  # not the buffer, which is another stream's

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._write_nowhere()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._write_nowhere()

    def _write_nowhere(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


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
