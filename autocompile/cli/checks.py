"""``autocompile init``, ``check``, ``doctor`` and ``verify``: a file to start from, what works."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from autocompile.cli import options
from autocompile.cli.output import print_or_draw, say, write
from autocompile.errors import ExitCode, UsageError

TEMPLATE = '''"""A model for autocompile: plain functions, nothing to import from autocompile."""

import torch


def get_model():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))


def get_inputs(batch_size):
    # A tuple or list is called as model(*x), a dict as model(**x), anything else as model(x).
    return (torch.randn(batch_size, 64),)


# Optional; without it: torch.optim.Adam(model.parameters())
# def get_optimizer(model):
#     return torch.optim.SGD(model.parameters(), lr=0.1)


# Optional too: get_loss(output, inputs), and check(expected, actual) of outputs
'''

File = Annotated[Path, typer.Argument(metavar="FILE", help="the file to write")]


def init(path: File = Path("model.py")) -> None:
    """Write a file to start from, with get_model() and get_inputs()."""
    if path.exists():
        raise UsageError(f"{path} exists already", hint=f"autocompile check {path}")
    write(path, TEMPLATE)
    from autocompile.store import runs

    typer.echo(f"wrote {path}\nNext    {runs.tuning(str(path), {})}")


def check(
    target: options.Target,
    phase: options.Phase = None,
    batch_size: Annotated[int, options.option("N", "of the inputs", min=1)] = 4,
    device: options.Device = None,
    timeout: options.Timeout = 300.0,
    tolerance: options.Tolerance = None,
    calls: options.Calls = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Run TARGET eagerly and under plain torch.compile(), and compare."""
    from autocompile.commands import diagnose
    from autocompile.report import checks

    phases = options.words(phase) or None
    results = diagnose.check(
        target, phases, batch_size, device, timeout, tolerance, calls
    )
    print_or_draw(
        results, as_json, lambda console: checks.render_check(results, console, verbose)
    )
    if not all(row["outcome"] == "ok" for row in results["phases"].values()):
        raise typer.Exit(ExitCode.GATE)


def doctor(
    backend: Annotated[
        str | None, typer.Argument(metavar="BACKEND", help="only this one")
    ] = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Say which backends and modes work here, and what the others need."""
    from autocompile.commands import diagnose
    from autocompile.report import checks

    results = diagnose.doctor(backend, device)
    print_or_draw(
        results,
        as_json,
        lambda console: checks.render_doctor(results, console, verbose),
    )


_GATES = "speedup=1.05, max-graphs=1, max-recompiles=0, max-compile-time=60s"
Settings = Annotated[
    str, typer.Argument(metavar="FILE|RUN", help="settings, as tuned.json, or a run")
]
Moved = Annotated[
    str | None, options.option("TARGET", "where the target is now, if it has moved")
]
Require = Annotated[
    list[str] | None, options.option("LIST", f"fail unless met: {_GATES}")
]
_WHOLE = "train RLlib's own algorithm with and without them"
InAlgorithm = Annotated[bool, options.flag("--in-algorithm", _WHOLE)]
_TIME = "end the whole command after this time; 2m if left out"
_FILE = "what the model is called with, as tune takes it; the settings' own if left out"
_DEVICE = "cpu, cuda or cuda:1; the settings' own if left out"
_PYTHON = "where an interpreter of the settings is now; repeatable"


def verify(
    settings: Settings = "last",
    target: Moved = None,
    require: Require = None,
    in_algorithm: InAlgorithm = False,
    budget: Annotated[float, options.option("TIME", _TIME)] = 120.0,
    device: Annotated[str | None, options.option("NAME", _DEVICE)] = None,
    python: Annotated[list[str] | None, options.option("NAME=PATH", _PYTHON)] = None,
    calls: Annotated[Path | None, options.option("FILE", _FILE)] = None,
    timeout: options.Timeout = 300.0,
    wait: options.Wait = False,
    as_json: options.Json = False,
    progress: options.Progress = "auto",
) -> None:
    """Try settings again, beside eager mode and plain torch.compile()."""
    from autocompile import api
    from autocompile.commands import bench
    from autocompile.commands import verify as verifying
    from autocompile.report.checks import render_in_algorithm, render_verified
    from autocompile.report.live import progress as progress_of
    from autocompile.settings.tuned import TunedSet
    from autocompile.store import runs
    from autocompile.store.files import write_json

    required = options.numbers("--require", require, verifying.REQUIREMENTS)
    folder = (
        None if settings.endswith(".json") else runs.find(settings)
    )  # another may be last soon
    tuned = TunedSet.read(settings if folder is None else api.load(folder.path))
    if in_algorithm:
        if require or device or python or calls or wait:
            raise UsageError(
                "--require, --device, --python, --calls and --wait are about the settings alone, "
                "and --in-algorithm about a whole training"
            )
        if progress != "none":
            say(
                f"trains with and without the settings, in turns, for about {budget:.0f} s"
            )
        where = target or verifying.entry_here(tuned).target
        comparison = bench.compare_in_algorithm(where, tuned, budget, timeout)
        if folder is not None:  # the run's report has the figures from now on
            write_json(folder.in_algorithm, comparison["figures"])
        print_or_draw(
            comparison,
            as_json,
            lambda console: render_in_algorithm(comparison, console),
        )
        return
    verified = verifying.verify(
        tuned,
        target,
        required,
        budget_s=budget,
        timeout_s=timeout,
        wait=wait,
        device=device,
        pythons=tuple(python or ()),
        calls=calls,
        progress=progress_of(progress, sys.stderr),
    )
    print_or_draw(verified, as_json, lambda console: render_verified(verified, console))
    if verified["interrupted"]:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not verified["is_good"]:
        raise typer.Exit(ExitCode.GATE)
