"""``autocompile verify``: parse, try the settings once more, render, exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from autocompile.cli import arguments, options
from autocompile.cli.output import print_or_draw, say, write
from autocompile.errors import ExitCode, UsageError

__all__ = ["verify"]

_BUDGET_S = 120.0


def verify(
    settings: Annotated[
        str, typer.Argument(metavar="FILE|RUN", help="settings, as tuned.json, or a run")
    ] = "last",
    target: Annotated[
        str | None, typer.Option(metavar="TARGET", help="where the target is now, if it has moved")
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIST",
            help="fail unless these are met: speedup=1.05, max-graphs=1, max-recompiles=0, "
            "max-compile-time=60s",
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write JUnit XML too, for CI")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="annotate the run of GitHub Actions that this is in")
    ] = False,
    in_algorithm: Annotated[
        bool,
        typer.Option("--in-algorithm", help="train RLlib's own algorithm with and without them"),
    ] = False,
    budget: Annotated[
        float,
        typer.Option(
            metavar="TIME",
            parser=options.seconds("--budget", "2m"),
            show_default=False,
            help="end the whole command after this time; 2m if left out",
        ),
    ] = _BUDGET_S,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="cpu, cuda or cuda:1; the settings' own if left out"),
    ] = None,
    timeout: arguments.Timeout = arguments.TIMEOUT_S,
    as_json: arguments.Json = False,
    progress: arguments.ProgressChoice = "auto",
    quiet: arguments.Quiet = False,
) -> None:
    """Try settings again, beside eager mode and plain torch.compile()."""
    from autocompile import api
    from autocompile.commands import verify as verifying
    from autocompile.report.terminal.checks import render_verified
    from autocompile.report.terminal.live import progress as progress_of
    from autocompile.settings.tuned import Tuned

    required = options.numbers("--require", require, verifying.REQUIREMENTS)
    if junit and not junit.parent.is_dir():
        raise UsageError(f"--junit: there is no folder {junit.parent}")
    tuned = Tuned.read(settings if settings.endswith(".json") else api.load(settings))
    shown = "none" if quiet else progress
    if in_algorithm:
        given = {"--require": required, "--junit": junit, "--github": github, "--device": device}
        _demand_none(given)
        found = _in_algorithm(target or tuned.target, tuned, budget, timeout, as_json, shown)
        _keep(settings, found["figures"])
        return
    done = verifying.verify(
        tuned,
        target,
        required,
        budget_s=budget,
        timeout_s=timeout,
        device=device,
        progress=progress_of(shown, sys.stderr),
    )
    print_or_draw(done.to_dict(), as_json, lambda console: render_verified(done.to_dict(), console))
    _tell_ci(done, junit, github)
    if done.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if done.faults:
        raise typer.Exit(ExitCode.GATE)


def _tell_ci(done: Any, junit: Path | None, github: bool) -> None:
    """Write what CI systems show: JUnit XML, annotations, and the summary of the job."""
    if junit:
        from autocompile.commands.junit import junit as as_junit

        write(junit, as_junit(done.checks, done.required))
    if github:
        from autocompile.commands.github import workflow_commands
        from autocompile.report.markdown import verified_to_markdown

        say("\n".join(workflow_commands(done.checks, done.required)))  # the runner reads stderr too
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            write(Path(summary), verified_to_markdown(done.to_dict()), "a")


def _demand_none(given: Mapping[str, Any]) -> None:
    """Refuse options that are about the settings alone, and not about a whole training."""
    if option := next((name for name, value in given.items() if value), None):
        raise UsageError(
            f"{option} is about the settings alone, and --in-algorithm about a whole training",
            hint=f"the same command without {option} or without --in-algorithm",
        )


def _keep(settings: str, figures: Any) -> None:
    """Write the figures into the run, if the settings are of one."""
    from autocompile.store import runs
    from autocompile.store.files import write_json

    if not settings.endswith(".json"):
        write_json(runs.find(settings).in_algorithm, figures)


def _in_algorithm(
    target: str, tuned: Any, budget: float, timeout: float, as_json: bool, shown: str
) -> dict[str, Any]:
    from autocompile.commands.in_algorithm import compare_in_algorithm
    from autocompile.report.terminal.checks import render_in_algorithm

    if shown != "none":
        say(f"trains with and without the settings, in turns, for about {budget:.0f} s")
    found = compare_in_algorithm(target, tuned, budget, timeout)
    print_or_draw(found, as_json, lambda console: render_in_algorithm(found, console))
    return found
