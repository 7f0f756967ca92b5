"""The command line: parse, call the API, render, exit code. No logic here, and no torch."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from autocompile import options
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

Effort = Literal["quick", "normal", "full"]
Objective = Literal["throughput", "latency"]
Format = Literal["python", "json", "rllib", "accelerate", "transformers"]
Isolation = Literal["auto", "fork", "spawn"]
ProgressKind = Literal["auto", "plain", "none"]


Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="model.py, PATH:NAME or package.module:NAME")
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="a folder, its short name, or last", autocompletion=options.known_runs
    ),
]
Json = Annotated[bool, typer.Option("--json", help="one JSON document on stdout, nothing else")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="say more")]
Tolerance = Annotated[str | None, typer.Option(help="relative, of outputs; else by dtype")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; a GPU where there is one")]


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


class _Stopped(Exception):
    """Ctrl-C, carried past Typer, which has an exit code of its own for it."""


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            raise _Stopped from None

    return run


# Commands ----------------------------------------------------------------------------------------


@app.command()
@_interruptible
def tune(
    target: Target,
    phase: Annotated[
        list[str] | None, typer.Option(help="what to time (repeatable); two phases if left out")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="comma list, e.g. inductor,cudagraphs")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="comma list of Inductor modes")] = None,
    batch_size: Annotated[str | None, typer.Option(help="comma list, e.g. 1,4,16")] = None,
    fullgraph: Annotated[str | None, typer.Option(help="comma list of true, false")] = None,
    dynamic: Annotated[str | None, typer.Option(help="comma list of none, true, false")] = None,
    effort: Annotated[Effort, typer.Option(help="how much it may cost")] = "normal",
    trials: Annotated[
        int | None, typer.Option(min=1, help="most trials in the search of one phase")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="most time to search, e.g. 10m")] = None,
    timeout: Annotated[str, typer.Option(help="longest stay in one step of a trial")] = "300s",
    objective: Annotated[Objective, typer.Option(help="what best means")] = "throughput",
    max_latency: Annotated[str | None, typer.Option(help="only settings below, e.g. 5ms")] = None,
    max_memory: Annotated[str | None, typer.Option(help="only settings below, e.g. 2GiB")] = None,
    max_compile_time: Annotated[str | None, typer.Option(help="only settings below")] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="kill a trial above, e.g. 8GiB; 80 % of free, shared")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="trials at once; one a core")] = None,
    isolation: Annotated[Isolation, typer.Option(help="how a trial's process begins")] = "auto",
    device: Device = None,
    storage: Annotated[str | None, typer.Option(help="Optuna storage URL")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="the run's folder")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the last run")] = False,
    seed: Annotated[int, typer.Option(help="of weights, inputs and orders")] = 0,
    tolerance: Tolerance = None,
    require_speedup: Annotated[
        float | None, typer.Option(help="exit code 1 unless every phase is faster by this factor")
    ] = None,
    as_json: Json = False,
    progress: Annotated[ProgressKind, typer.Option(help="what stderr shows meanwhile")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
    verbose: Verbose = False,
) -> None:
    """Search the settings of torch.compile for TARGET and report the best."""
    flags = {"true": True, "false": False}
    from autocompile import api
    from autocompile.ranking import Limits
    from autocompile.report.live import progress as progress_of
    from autocompile.search.space import SearchSpace

    result = api.tune(
        target,
        phases=tuple(phase) if phase else None,
        space=SearchSpace(
            backends=options.words(backend),
            modes=options.words(mode),
            batch_sizes=options.integers("--batch-size", batch_size),
            fullgraph=options.choices("--fullgraph", fullgraph, flags),
            dynamic=options.choices("--dynamic", dynamic, {"none": None, **flags}),
        ),
        effort=effort,
        trials=trials,
        budget_s=options.seconds("--budget", budget, "10m"),
        timeout_s=options.seconds("--timeout", timeout, "300s") or 300.0,
        memory_limit_bytes=options.size("--memory-limit", memory_limit),
        objective=objective,
        limits=Limits(
            options.seconds("--max-latency", max_latency, "5ms"),
            options.size("--max-memory", max_memory),
            options.seconds("--max-compile-time", max_compile_time, "60s"),
        ),
        device=device,
        jobs=jobs,
        isolation=isolation,
        storage=storage,
        run_dir=run_dir,
        resume=resume,
        seed=seed,
        tolerance=options.fraction("--tolerance", tolerance),
        progress=progress_of("none" if quiet else progress, sys.stderr),
    )
    _show(result, as_json, verbose)
    if result.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if require_speedup is not None:
        failed = [n for n in result.verdict if not result.is_faster_by(require_speedup, n)]
        if failed:
            _say(f"gate: {', '.join(failed)} is not surely faster by {require_speedup:g}x")
            raise typer.Exit(ExitCode.GATE)


@app.command()
@_interruptible
def show(run: Run = "last", as_json: Json = False, verbose: Verbose = False) -> None:
    """Show the report of a run that was made before."""
    from autocompile import api

    _show(api.load(run), as_json, verbose)


@app.command()
@_interruptible
def export(
    run: Run = "last",
    to: Annotated[Format, typer.Option(help="the stack that reads it")] = "python",
) -> None:
    """Print the best settings of RUN in the form of a training stack."""
    from autocompile import api

    typer.echo(api.load(run).export(to), nl=False)


@app.command()
@_interruptible
def check(
    target: Target,
    phase: Annotated[list[str] | None, typer.Option(help="what to try (repeatable)")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="of the inputs")] = 4,
    device: Device = None,
    timeout: Annotated[str, typer.Option(help="longest stay in one step")] = "300s",
    tolerance: Tolerance = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Load TARGET, run it in eager mode and under torch.compile() as it comes, and compare."""
    from autocompile import diagnose
    from autocompile.report import checks

    seconds = options.seconds("--timeout", timeout, "300s") or 300.0
    within = options.fraction("--tolerance", tolerance)
    phases = tuple(phase) if phase else None
    found = diagnose.check(target, phases, batch_size, device, seconds, within)
    _print(found, as_json, lambda console: checks.render_check(found, console, verbose))
    if not all(row["outcome"] == "ok" for row in found["phases"].values()):
        raise typer.Exit(ExitCode.GATE)


@app.command()
@_interruptible
def doctor(
    backend: Annotated[str | None, typer.Argument(help="only this backend")] = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Say which backends and modes work here, and for each that does not: why, and what to do."""
    from autocompile import diagnose
    from autocompile.report import checks

    found = diagnose.doctor(backend, device)
    _print(found, as_json, lambda console: checks.render_doctor(found, console, verbose))


@app.command()
@_interruptible
def init(
    path: Annotated[Path, typer.Argument(help="the file to write")] = Path("model.py"),
) -> None:
    """Write a file to start from: get_model() and get_inputs(batch_size)."""
    from autocompile.template import TEMPLATE

    if path.exists():
        raise UsageError(f"{path} exists already", hint=f"autocompile check {path}")
    try:
        path.write_text(TEMPLATE, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    typer.echo(f"wrote {path}\nNext    autocompile tune {path}")


# Output ------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    from autocompile.report.text import plain

    for line in text.splitlines():  # it may quote what a trial said
        indent = line[: len(line) - len(line.lstrip())]
        typer.echo(indent + plain(line), err=True)


def _print(data: Any, as_json: bool, render: Callable[[Any], None]) -> None:
    if as_json:
        typer.echo(json.dumps(data, indent=1))
        return
    from rich.console import Console

    render(Console(highlight=False, soft_wrap=not sys.stdout.isatty()))


def _show(result: Any, as_json: bool, verbose: bool) -> None:
    from autocompile import runs
    from autocompile.export import use_line
    from autocompile.report.terminal import render, render_trials

    report = result.to_dict()

    def draw(console: Any) -> None:
        if verbose:
            render_trials(report, console)
        name = "rllib" if report["exports"].get("rllib") else "python"
        others = ", ".join(n for n in report["exports"] if n != name)
        run = runs.shown(report["run_dir"])
        following = f"autocompile export {run} --to {name}        (also: {others})"
        line = following if others else ""
        render(report, console, use=use_line(report), next_line=line, verbose=verbose)

    _print(report, as_json, draw)


def _terminated(signum: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """The ``autocompile`` command: every failure is a paragraph and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    verbose = "-v" in sys.argv or "--verbose" in sys.argv
    try:
        app()
    except AutocompileError as error:
        _say(f"error: {error.text()}")
        sys.exit(error.exit_code)
    except (_Stopped, KeyboardInterrupt):
        _say("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.DONE)
    except Exception as error:
        if verbose:
            raise
        _say(
            f"error: a defect in autocompile: {type(error).__name__}: {error}\n"
            "  finished trials are safe in the run's folder\n"
            "  try: the same command with -v, and report what it prints"
        )
        sys.exit(ExitCode.INTERNAL)
