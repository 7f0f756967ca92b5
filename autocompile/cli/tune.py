"""``autocompile tune``: search, report, exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from autocompile.cli import arguments, options
from autocompile.cli.output import print_or_draw, say, show_result
from autocompile.errors import ExitCode

__all__ = ["tune"]


@arguments.with_options()
def tune(
    target: arguments.Target,
    phase: list[str] | None = None,
    effort: arguments.Effort = "normal",
    budget: float | None = None,
    device: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    space: Path | None = None,
    python: list[str] | None = None,
    calls_per_update: int | None = None,
    trials: int | None = None,
    sampler: arguments.Sampler = "portfolio",
    storage: str | None = None,
    study: str | None = None,
    objective: arguments.Objective = "throughput",
    max_latency: float | None = None,
    max_memory: int | None = None,
    max_compile_time: float | None = None,
    require_speedup: float | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    jobs: int | None = None,
    timeout: float = 300.0,
    memory_limit: int | None = None,
    isolation: arguments.Isolation = "auto",
    run_dir: Path | None = None,
    as_json: bool = False,
    progress: arguments.ProgressKind = "auto",
    quiet: bool = False,
    verbose: bool = False,
    **dimensions: Any,
) -> None:
    """Find the fastest settings of torch.compile for TARGET.

    \b
    Examples:
      autocompile tune model.py
      autocompile tune model.py --budget 2m --require-speedup 1.05

    [tool.autocompile] in pyproject.toml holds defaults of these options.
    """
    from autocompile import api
    from autocompile.cli.space import asked
    from autocompile.estimate.candidates import Limits
    from autocompile.report.terminal.live import progress as progress_of

    request: dict[str, Any] = {
        "phases": options.words(phase) or None,
        "space": asked(space, dimensions),
        "effort": effort,
        "trials": trials,
        "budget_s": budget,
        "timeout_s": timeout,
        "device": device,
        "jobs": jobs,
        "pythons": tuple(python or ()),
    }
    if dry_run:
        from autocompile.commands.preview import preview
        from autocompile.report.terminal.checks import render_preview

        found = preview(target, **request)
        print_or_draw(found, as_json, lambda console: render_preview(found, console))
        return
    result = api.tune(
        target,
        **request,
        sampler=sampler,
        memory_limit_bytes=memory_limit,
        objective=objective,
        limits=Limits(max_latency, max_memory, max_compile_time),
        isolation=isolation,
        storage=storage,
        study=study,
        run_dir=run_dir,
        resume=resume,
        seed=seed,
        tolerance=tolerance,
        calls_per_update=calls_per_update,
        progress=progress_of("none" if quiet else progress, sys.stderr),
    )
    _end(result, run_dir, require_speedup, as_json, verbose)


def _end(
    result: Any, run_dir: Path | None, factor: float | None, as_json: bool, verbose: bool
) -> None:
    """Show a result, and turn it into an exit code."""
    from autocompile.search.jobs import without_interrupts
    from autocompile.store import runs

    with without_interrupts():
        show_result(result, str(run_dir or runs.shown(result.run_dir)), as_json, verbose)
    if result.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    slow = [n for n in result.verdict if factor is not None and not result.is_faster_by(factor, n)]
    if slow:
        say(f"gate: {', '.join(slow)} is not surely faster by {factor:g}x")
        raise typer.Exit(ExitCode.GATE)
