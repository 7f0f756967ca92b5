"""``autocompile verify``: parse, try the settings once more, render, exit code."""

from __future__ import annotations

import sys
import tempfile
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
    device: arguments.Device = None,
    timeout: arguments.Timeout = arguments.TIMEOUT_S,
    as_json: arguments.Json = False,
    progress: arguments.ProgressChoice = "auto",
    quiet: arguments.Quiet = False,
) -> None:
    """Try settings again, beside eager mode and plain torch.compile()."""
    from autocompile import api
    from autocompile.commands.verify import REQUIREMENTS, check, unmet
    from autocompile.report.checks import render_verified
    from autocompile.report.live import progress as progress_of
    from autocompile.settings.tuned import Tuned

    required = options.numbers("--require", require, REQUIREMENTS)
    tuned = Tuned.read(settings if settings.endswith(".json") else api.load(settings))
    if in_algorithm:
        from autocompile.store import runs
        from autocompile.store.files import write_json

        if required or junit:
            option = "--require" if required else "--junit"
            raise UsageError(
                f"{option} is about the settings alone, and --in-algorithm about a whole training",
                hint=f"the same command without {option} or without --in-algorithm",
            )
        is_silent = quiet or progress == "none"
        found = _in_algorithm(target or tuned.target, tuned, budget, timeout, as_json, is_silent)
        if not settings.endswith(".json"):
            write_json(runs.find(settings).in_algorithm, found["figures"])
        return
    with tempfile.TemporaryDirectory(prefix="autocompile-verify-") as folder:
        result = api.tune(
            target or tuned.target,
            only=tuned,
            budget_s=budget,
            device=device or tuned.fingerprint.get("device"),
            timeout_s=timeout,
            run_dir=Path(folder) / "run",
            progress=progress_of("none" if quiet else progress, sys.stderr),
        )
    checks = check(tuned, result)
    gates = unmet(checks, required)
    if junit:
        from autocompile.commands.junit import junit as as_junit

        write(junit, as_junit(checks, required))
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


def _in_algorithm(
    target: str, tuned: Any, budget: float, timeout: float, as_json: bool, is_silent: bool
) -> dict[str, Any]:
    from autocompile.commands.in_algorithm import compare_in_algorithm
    from autocompile.report.checks import render_in_algorithm

    if not is_silent:
        say(f"trains with and without the settings, in turns, for about {budget:.0f} s")
    found = compare_in_algorithm(target, tuned, budget, timeout)
    print_or_draw(found, as_json, lambda console: render_in_algorithm(found, console))
    return found
