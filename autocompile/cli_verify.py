"""``autocompile verify``: parse, try the settings once more, render, exit code."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from autocompile import arguments, options
from autocompile.errors import ExitCode
from autocompile.screen import print_or_draw

__all__ = ["verify"]


def verify(
    settings: Annotated[str, typer.Argument(metavar="FILE|RUN", help="what to verify")] = "last",
    target: Annotated[str | None, typer.Option(help="if it has moved since")] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help="speedup=1.05, max-graphs=1, max-recompiles=0, max-compile-time=60"),
    ] = None,
    budget: Annotated[str, typer.Option(help="of the whole command")] = "2m",
    device: arguments.Device = None,
    timeout: arguments.Timeout = "300s",
    as_json: arguments.Json = False,
    progress: arguments.ProgressChoice = "auto",
    quiet: arguments.Quiet = False,
) -> None:
    """Try the settings of a file or run once more, here and now, beside eager and the default."""
    from autocompile import api
    from autocompile.report.checks import render_verified
    from autocompile.report.live import progress as progress_of
    from autocompile.tuned import Tuned
    from autocompile.verify import REQUIREMENTS, check, unmet

    required = options.numbers("--require", require, REQUIREMENTS)
    tuned = Tuned.read(settings if settings.endswith(".json") else api.load(settings))
    with tempfile.TemporaryDirectory(prefix="autocompile-verify-") as folder:
        result = api.tune(
            target or tuned.target,
            only=tuned,
            budget_s=options.seconds("--budget", budget, "2m"),
            device=device or tuned.fingerprint.get("device"),
            timeout_s=options.seconds("--timeout", timeout, "300s") or 300.0,
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
