"""``autocompile verify``: parse, try the settings once more, render, exit code."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from autocompile.cli import arguments, options
from autocompile.cli.output import print_or_draw, say
from autocompile.errors import ExitCode, UsageError

__all__ = ["verify"]


def verify(
    settings: Annotated[str, typer.Argument(metavar="FILE|RUN", help="what to verify")] = "last",
    target: Annotated[str | None, typer.Option(help="if it has moved since")] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help="speedup=1.05, max-graphs=1, max-recompiles=0, max-compile-time=60"),
    ] = None,
    in_algorithm: Annotated[
        bool,
        typer.Option("--in-algorithm", help="in RLlib's own algorithm, with and without"),
    ] = False,
    budget: Annotated[str, typer.Option(help="of the whole command")] = "2m",
    device: arguments.Device = None,
    timeout: arguments.Timeout = "300s",
    as_json: arguments.Json = False,
    progress: arguments.ProgressChoice = "auto",
    quiet: arguments.Quiet = False,
) -> None:
    """Try the settings of a file or run once more, here and now, beside eager and the default."""
    from autocompile import api
    from autocompile.commands.verify import REQUIREMENTS, check, unmet
    from autocompile.report.checks import render_in_algorithm, render_verified
    from autocompile.report.live import progress as progress_of
    from autocompile.settings.tuned import Tuned
    from autocompile.store import runs
    from autocompile.store.files import write_json

    required = options.numbers("--require", require, REQUIREMENTS)
    tuned = Tuned.read(settings if settings.endswith(".json") else api.load(settings))
    budget_s = options.seconds("--budget", budget, "2m") or 120.0
    timeout_s = options.seconds("--timeout", timeout, "300s") or 300.0
    if in_algorithm:
        from autocompile.commands.in_algorithm import compare_in_algorithm

        if required:
            raise UsageError("--require is about the settings alone: leave out --in-algorithm")
        if not quiet and progress != "none":
            say(f"trains with and without the settings, in turns, for about {budget}")
        found = compare_in_algorithm(target or tuned.target, tuned, budget_s, timeout_s)
        if not settings.endswith(".json"):
            write_json(runs.find(settings).in_algorithm, found["figures"])
        print_or_draw(found, as_json, lambda console: render_in_algorithm(found, console))
        return
    with tempfile.TemporaryDirectory(prefix="autocompile-verify-") as folder:
        result = api.tune(
            target or tuned.target,
            only=tuned,
            budget_s=budget_s,
            device=device or tuned.fingerprint.get("device"),
            timeout_s=timeout_s,
            run_dir=Path(folder) / "run",
            progress=progress_of("none" if quiet else progress, sys.stderr),
        )
    checks = check(tuned, result)
    gates = unmet(checks, required)
    found = {
        "checks": [one.to_dict() for one in checks],
        "unmet": gates,
        "environment": result.environment,
        "differences": tuned.differences(result.environment),
    }
    print_or_draw(found, as_json, lambda console: render_verified(found, console))
    if result.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if gates or not all(one.is_good or one.verdict == "open" for one in checks):
        raise typer.Exit(ExitCode.GATE)
