"""The command line: parse, call the API, render, exit code. No logic here, and no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from autocompile.cli import arguments, options
from autocompile.cli.export import export, loaded
from autocompile.cli.output import (
    Stopped,
    interruptible,
    print_or_draw,
    say,
    show_page,
    show_result,
)
from autocompile.cli.verify import verify
from autocompile.errors import AutocompileError, ExitCode, UsageError

__all__ = ["app", "main"]

app = typer.Typer(
    name="autocompile",
    help="Find the fastest torch.compile settings that keep your model right, on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from autocompile import __version__

        typer.echo(f"autocompile {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="show the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Find the fastest torch.compile settings that keep your model right, on this machine."""


@app.command()
@interruptible
@arguments.with_dimensions
def tune(
    target: arguments.Target,
    phase: arguments.Phase = None,
    space: arguments.Space = None,
    calls_per_update: arguments.CallsPerUpdate = None,
    python: arguments.Python = None,
    effort: arguments.EffortChoice = "normal",
    trials: arguments.Trials = None,
    budget: arguments.Budget = None,
    sampler: arguments.SamplerChoice = "portfolio",
    timeout: arguments.Timeout = "300s",
    objective: arguments.ObjectiveChoice = "throughput",
    max_latency: arguments.MaxLatency = None,
    max_memory: arguments.MaxMemory = None,
    max_compile_time: arguments.MaxCompileTime = None,
    memory_limit: arguments.MemoryLimit = None,
    jobs: arguments.Jobs = None,
    isolation: arguments.IsolationChoice = "auto",
    device: arguments.Device = None,
    storage: arguments.Storage = None,
    run_dir: arguments.RunDir = None,
    resume: arguments.Resume = False,
    seed: arguments.Seed = 0,
    tolerance: arguments.Tolerance = None,
    require_speedup: arguments.RequireSpeedup = None,
    dry_run: arguments.DryRun = False,
    as_json: arguments.Json = False,
    progress: arguments.ProgressChoice = "auto",
    quiet: arguments.Quiet = False,
    verbose: arguments.Verbose = False,
    **dimensions: Any,
) -> None:
    """Search the settings of torch.compile for TARGET and report the best."""
    from autocompile import api
    from autocompile.cli.space import asked
    from autocompile.estimate.candidates import Limits
    from autocompile.report.live import progress as progress_of
    from autocompile.search.jobs import without_interrupts
    from autocompile.store import runs

    phases, relative = options.words(phase), options.fraction("--tolerance", tolerance)
    timeout_s = options.seconds("--timeout", timeout, "300s") or 300.0
    budget_s = options.seconds("--budget", budget, "90s or 10m")
    memory_limit_bytes = options.size("--memory-limit", memory_limit)
    limits = Limits(
        options.seconds("--max-latency", max_latency, "5ms"),
        options.size("--max-memory", max_memory),
        options.seconds("--max-compile-time", max_compile_time, "60s"),
    )
    wanted = asked(space, dimensions)
    pythons = tuple(python or ())
    if dry_run:
        from autocompile.commands.preview import preview
        from autocompile.report.checks import render_preview

        asked_for = target, phases, wanted, effort, device, jobs, timeout_s
        found = preview(*asked_for, pythons, trials, budget_s)
        print_or_draw(found, as_json, lambda console: render_preview(found, console))
        return
    result = api.tune(
        target,
        phases=phases,
        space=wanted,
        effort=effort,
        trials=trials,
        budget_s=budget_s,
        sampler=sampler,
        timeout_s=timeout_s,
        memory_limit_bytes=memory_limit_bytes,
        objective=objective,
        limits=limits,
        device=device,
        jobs=jobs,
        isolation=isolation,
        storage=storage,
        run_dir=run_dir,
        resume=resume,
        seed=seed,
        tolerance=relative,
        calls_per_update=calls_per_update,
        pythons=pythons,
        progress=progress_of("none" if quiet else progress, sys.stderr),
    )
    with without_interrupts():
        show_result(result, str(run_dir or runs.shown(result.run_dir)), as_json, verbose)
    if result.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if require_speedup is not None:
        failed = [n for n in result.verdict if not result.is_faster_by(require_speedup, n)]
        if failed:
            say(f"gate: {', '.join(failed)} is not surely faster by {require_speedup:g}x")
            raise typer.Exit(ExitCode.GATE)


@app.command()
@interruptible
def show(
    run: arguments.Run = "last",
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
    html: arguments.Html = False,
    browse: arguments.Open = False,
) -> None:
    """Show the report of a run that was made before."""
    if html or browse:
        show_page(loaded(run), browse)
        return
    show_result(loaded(run), run, as_json, verbose)


for _command in (export, verify):
    app.command()(interruptible(_command))


@app.command()
@interruptible
def check(
    target: arguments.Target,
    phase: Annotated[list[str] | None, typer.Option(help="what to try (repeatable)")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="of the inputs")] = 4,
    device: arguments.Device = None,
    timeout: Annotated[str, typer.Option(help="longest stay in one step")] = "300s",
    tolerance: arguments.Tolerance = None,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Load TARGET, run it in eager mode and under plain torch.compile(), and compare."""
    from autocompile.commands import diagnose
    from autocompile.report import checks

    seconds = options.seconds("--timeout", timeout, "300s") or 300.0
    within = options.fraction("--tolerance", tolerance)
    phases = options.words(phase)
    found = diagnose.check(target, phases, batch_size, device, seconds, within)
    print_or_draw(found, as_json, lambda console: checks.render_check(found, console, verbose))
    if not all(row["outcome"] == "ok" for row in found["phases"].values()):
        raise typer.Exit(ExitCode.GATE)


@app.command()
@interruptible
def doctor(
    backend: Annotated[str | None, typer.Argument(help="only this backend")] = None,
    device: arguments.Device = None,
    as_json: arguments.Json = False,
    verbose: arguments.Verbose = False,
) -> None:
    """Say which backends and modes work here, and for each that does not: why, and what to do."""
    from autocompile.commands import diagnose
    from autocompile.report import checks

    found = diagnose.doctor(backend, device)
    print_or_draw(found, as_json, lambda console: checks.render_doctor(found, console, verbose))


@app.command()
@interruptible
def init(
    path: Annotated[Path, typer.Argument(help="the file to write")] = Path("model.py"),
) -> None:
    """Write a file to start from: get_model() and get_inputs(batch_size)."""
    from autocompile.cli.template import TEMPLATE

    if path.exists():
        raise UsageError(f"{path} exists already", hint=f"autocompile check {path}")
    try:
        path.write_text(TEMPLATE, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    typer.echo(f"wrote {path}\nNext    autocompile tune {path}")


def _terminated(signum: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """The ``autocompile`` command: every failure is a paragraph and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdout, sys.stderr):  # a terminal that has no × shows a ? in its place
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    verbose = "-v" in sys.argv or "--verbose" in sys.argv
    try:
        app()
    except AutocompileError as error:
        say(f"error: {error.text()}")
        sys.exit(error.exit_code)
    except (Stopped, KeyboardInterrupt):
        say("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.DONE)
    except Exception as error:
        if verbose:
            raise
        say(
            f"error: a defect in autocompile: {type(error).__name__}: {error}\n"
            "  finished trials are safe in the run's folder\n"
            "  try: the same command with -v, and report what it prints"
        )
        sys.exit(ExitCode.INTERNAL)
