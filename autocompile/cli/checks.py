"""``autocompile check``, ``doctor`` and ``verify``: what works here, and whether it still does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from autocompile.cli import arguments, options
from autocompile.cli.output import print_or_draw, say, write
from autocompile.errors import ExitCode, UsageError

__all__ = ["check", "doctor", "verify"]


@arguments.with_options(batch_size=("N", "of the inputs", 1))
def check(
    target: arguments.Target,
    phase: list[str] | None = None,
    batch_size: int = 4,
    device: str | None = None,
    timeout: float = 300.0,
    tolerance: float | None = None,
    as_json: bool = False,
    verbose: bool = False,
) -> None:
    """Run TARGET eagerly and under plain torch.compile(), and compare."""
    from autocompile.commands import diagnose
    from autocompile.report.terminal import checks

    phases = options.words(phase) or None
    found = diagnose.check(target, phases, batch_size, device, timeout, tolerance)
    print_or_draw(found, as_json, lambda console: checks.render_check(found, console, verbose))
    if not all(row["outcome"] == "ok" for row in found["phases"].values()):
        raise typer.Exit(ExitCode.GATE)


@arguments.with_options()
def doctor(
    backend: Annotated[str | None, typer.Argument(metavar="BACKEND", help="only this one")] = None,
    device: str | None = None,
    as_json: bool = False,
    verbose: bool = False,
) -> None:
    """Say which backends and modes work here, and what the others need."""
    from autocompile.commands import diagnose
    from autocompile.report.terminal import checks

    found = diagnose.doctor(backend, device)
    print_or_draw(found, as_json, lambda console: checks.render_doctor(found, console, verbose))


@arguments.with_options(
    target=("TARGET", "where the target is now, if it has moved"),
    budget=("TIME", "end the whole command after this time; 2m if left out", "2m"),
    device=("NAME", "cpu, cuda or cuda:1; the settings' own if left out"),
    python=("NAME=PATH", "where an interpreter of the settings is now; repeatable"),
)
def verify(
    settings: Annotated[
        str, typer.Argument(metavar="FILE|RUN", help="settings, as tuned.json, or a run")
    ] = "last",
    target: str | None = None,
    require: list[str] | None = None,
    junit: Path | None = None,
    github: bool = False,
    in_algorithm: bool = False,
    budget: float = 120.0,
    device: str | None = None,
    python: list[str] | None = None,
    timeout: float = 300.0,
    wait: bool = False,
    as_json: bool = False,
    progress: arguments.ProgressKind = "auto",
    quiet: bool = False,
) -> None:
    """Try settings again, beside eager mode and plain torch.compile()."""
    from autocompile import api
    from autocompile.commands.verify import REQUIREMENTS, Verified
    from autocompile.commands.verify import verify as verified
    from autocompile.report.terminal.checks import render_verified
    from autocompile.report.terminal.live import progress as progress_of
    from autocompile.settings.tuned_set import TunedSet

    required = options.numbers("--require", require, REQUIREMENTS)
    if junit and not junit.parent.is_dir():
        raise UsageError(f"--junit: there is no folder {junit.parent}")
    shown = "none" if quiet else progress
    if in_algorithm:
        given: dict[str, Any] = {"--require": required, "--junit": junit, "--github": github}
        given |= {"--device": device, "--python": python, "--wait": wait}
        if option := next((name for name, value in given.items() if value), None):
            raise UsageError(
                f"{option} is about the settings alone, and --in-algorithm about a whole training",
                hint=f"the same command without {option} or without --in-algorithm",
            )
        if shown != "none":
            say(f"trains with and without the settings, in turns, for about {budget:.0f} s")
        _verify_in_algorithm(settings, target, budget, timeout, as_json)
        return
    try:
        found = verified(
            TunedSet.read(settings if settings.endswith(".json") else api.load(settings)),
            target,
            required,
            budget_s=budget,
            timeout_s=timeout,
            wait=wait,
            device=device,
            pythons=tuple(python or ()),
            progress=progress_of(shown, sys.stderr),
        )
    except Exception as error:
        _tell_ci(Verified([], {}, {}, [], False, str(error) or type(error).__name__), junit, github)
        raise
    data = found.to_dict()
    _tell_ci(found, junit, github)
    print_or_draw(data, as_json, lambda console: render_verified(data, console))
    if found.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not found.is_good:
        raise typer.Exit(ExitCode.GATE)


def _tell_ci(found: Any, junit: Path | None, github: bool) -> None:
    """Write what CI systems show: JUnit XML, annotations, and the summary of the job."""
    from autocompile.commands import verify as verifying
    from autocompile.report.markdown import verified_to_markdown

    if junit:
        write(junit, verifying.junit(found))
    if github:
        say("\n".join(verifying.github(found)))  # the runner reads stderr too
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            write(Path(summary), verified_to_markdown(found.to_dict(), found.error), "a")


def _verify_in_algorithm(
    settings: str, target: str | None, budget_s: float, timeout_s: float, as_json: bool
) -> None:
    """Compare whole trainings; a run keeps the figures."""
    from autocompile import api
    from autocompile.commands.in_algorithm import compare_in_algorithm
    from autocompile.commands.verify import entry_here
    from autocompile.report.terminal.checks import render_in_algorithm
    from autocompile.settings.tuned_set import TunedSet
    from autocompile.store import runs
    from autocompile.store.files import write_json

    folder = None if settings.endswith(".json") else runs.find(settings)  # another may be last soon
    tuned = TunedSet.read(settings if folder is None else api.load(folder.path))
    found = compare_in_algorithm(target or entry_here(tuned).target, tuned, budget_s, timeout_s)
    if folder is not None:
        write_json(folder.in_algorithm, found["figures"])
    print_or_draw(found, as_json, lambda console: render_in_algorithm(found, console))
