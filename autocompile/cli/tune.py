"""``autocompile tune``: search, report, exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autocompile.cli import options
from autocompile.cli.help import HelpAll
from autocompile.cli.output import print_or_draw, say, show_result
from autocompile.errors import AutocompileError, ExitCode, UsageError
from autocompile.settings.option import CHOSEN, COMMON, FACTOR

if TYPE_CHECKING:
    from autocompile.cluster.tune_all import OnCluster

_DRY = "list what would be tried, and what not and why"
DryRun = Annotated[bool, options.switch("--dry-run", _DRY, COMMON)]
_GATE = "exit with 1 unless every phase is surely this much faster, as 1.05"
RequireSpeedup = Annotated[
    float | None, options.own(FACTOR, "--require-speedup", _GATE, CHOSEN)
]


@options.takes(options.DECLARED.values())
def tune(
    context: typer.Context,
    target: options.Target,
    asked: options.Asked,
    dry_run: DryRun = False,
    require_speedup: RequireSpeedup = None,
    as_json: options.Json = False,
    progress: options.Progress = "auto",
    verbose: options.Verbose = False,
    help_all: HelpAll = False,
) -> None:
    """Find the fastest settings of torch.compile for TARGET.

    \b
    Examples:
      autocompile tune model.py
      autocompile tune model.py --budget 2m --require-speedup 1.05
    """
    from autocompile import api
    from autocompile.request import Request
    from autocompile.search.jobs import without_interrupts
    from autocompile.store import runs
    from autocompile.store.targets import target_spec

    request = Request.of(target_spec(target), options.given(asked))
    _demand_one_place(request, dry_run)
    if dry_run:
        from autocompile.commands.diagnose import preview
        from autocompile.report.checks import render_preview

        settings = preview(request)
        print_or_draw(
            settings, as_json, lambda console: render_preview(settings, console)
        )
        return
    if request.ray is not None:
        from autocompile.cluster.tune_all import tune_all

        _end_all(
            tune_all(request, progress, began=context.obj),
            require_speedup,
            as_json,
            verbose,
        )
        return
    result = api.tune_with(request, api.Parts(progress=progress, began=context.obj))
    shown = str(request.run_dir or runs.shown(result.run_dir))
    with without_interrupts():
        show_result(result.report, shown, as_json, verbose)
    _leave([result], require_speedup)


def _demand_one_place(request: Any, dry_run: bool) -> None:
    """Check that options are about this machine, or about those of a cluster."""
    if request.ray is None:
        if request.accelerators:
            raise UsageError(
                "--accelerators names machines of a Ray cluster, and --ray none to connect to",
                hint=f"--ray auto --accelerators {','.join(request.accelerators)}",
            )
        return
    here_alone = {
        "--dry-run": dry_run,
        "--wait": request.wait,
        "--python": request.pythons,
    }
    for option in (name for name, value in here_alone.items() if value):
        raise UsageError(
            f"{option} is about this machine, and --ray about others",
            hint=f"the same command without {option}, or without --ray",
        )


def _end_all(
    outcome: OnCluster, factor: float | None, as_json: bool, verbose: bool
) -> None:
    """Show the result of each type, in one document where it is JSON."""
    from autocompile.search.jobs import without_interrupts

    several = len(outcome.results) > 1
    with without_interrupts():
        if as_json:
            typer.echo(
                json.dumps(
                    {k: r.to_dict() for k, r in outcome.results.items()}, indent=1
                )
            )
        else:
            for kind, result in outcome.results.items():
                if several:
                    typer.echo(f"{kind}\n")
                show_result(result.report, result.run_dir, False, verbose)
                typer.echo()
            if several:
                typer.echo(f"All of them: {outcome.folder / 'table.html'}\n")
        for kind, error in outcome.errors.items():
            if isinstance(error, AutocompileError):
                say(f"error: {kind}: {error.text()}")
            elif isinstance(error, KeyboardInterrupt):
                say(f"{kind}: interrupted before there was anything to report")
    for error in outcome.errors.values():
        if not isinstance(error, (AutocompileError, KeyboardInterrupt)):
            raise error  # a defect, once the results of the others are shown
    if not outcome.interrupted and outcome.errors:
        codes = [
            e.exit_code
            for e in outcome.errors.values()
            if isinstance(e, AutocompileError)
        ]
        raise typer.Exit(max(codes))
    _leave(list(outcome.results.values()), factor, outcome.interrupted)


def _leave(
    results: Sequence[Any], factor: float | None, interrupted: bool = False
) -> None:
    """Turn results into an exit code."""
    if interrupted or any(result.interrupted for result in results):
        raise typer.Exit(ExitCode.INTERRUPTED)
    slow = [
        name
        for result in results
        for name in result.verdict
        if factor is not None and not result.is_faster_by(factor, name)
    ]
    if slow:
        say(
            f"gate: {', '.join(dict.fromkeys(slow))} is not surely faster by {factor:g}x"
        )
        raise typer.Exit(ExitCode.GATE)
    if not any(result.has_answer for result in results):
        # An exit code of 0 would say that eager mode is best, which nobody knows.
        raise typer.Exit(ExitCode.GATE)
