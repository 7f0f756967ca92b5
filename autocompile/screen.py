"""What the command line writes: words to stderr, and one result to stdout, drawn or as JSON."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import typer

__all__ = ["Stopped", "interruptible", "print_or_draw", "say"]


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


class Stopped(Exception):
    """Ctrl-C, carried past Typer, which has an exit code of its own for it."""


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose Ctrl-C reaches the one place that ends the program."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            raise Stopped from None

    return run
