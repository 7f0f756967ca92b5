"""The arguments and options of the commands: their types, and what ``--help`` says of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from autocompile.cli import options
from autocompile.settings.dimensions import SEARCHED

Effort = Literal["quick", "normal", "full"]
Sampler = Literal["portfolio", "tpe", "gp", "random"]
Objective = Literal["throughput", "latency"]
Format = Literal["python", "script", "json", "rllib", "accelerate", "transformers", "lightning"]
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
Html = Annotated[bool, typer.Option("--html", help="write report.html anew and print its path")]
Open = Annotated[bool, typer.Option("--open", help="the same, and open it in a browser")]
Tolerance = Annotated[str | None, typer.Option(help="relative, of outputs; else by dtype")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; a GPU where there is one")]

# Of tune -----------------------------------------------------------------------------------------

Phase = Annotated[
    list[str] | None, typer.Option(help="what to time (repeatable); two phases if left out")
]
Space = Annotated[Path | None, typer.Option(help="a TOML file of such lists; options go before it")]
CallsPerUpdate = Annotated[
    int | None, typer.Option(min=1, help="calls between two changes of the weights")
]
Python = Annotated[
    list[str] | None, typer.Option(help="PATH or NAME=PATH of another interpreter (repeatable)")
]
EffortChoice = Annotated[
    Effort, typer.Option(help="quick: 90 s, normal: 5 min, full: every setting")
]
Trials = Annotated[int | None, typer.Option(min=1, help="most trials of the search")]
Budget = Annotated[str | None, typer.Option(help="time of the whole run, e.g. 10m")]
SamplerChoice = Annotated[Sampler, typer.Option(help="what chooses the next setting")]
Timeout = Annotated[str, typer.Option(help="longest stay in one step of a trial")]
ObjectiveChoice = Annotated[Objective, typer.Option(help="what best means")]
MaxLatency = Annotated[str | None, typer.Option(help="only settings below, e.g. 5ms")]
MaxMemory = Annotated[str | None, typer.Option(help="only settings below, e.g. 2GiB")]
MaxCompileTime = Annotated[str | None, typer.Option(help="only settings below")]
MemoryLimit = Annotated[
    str | None, typer.Option(help="kill a trial above, e.g. 8GiB; 80 % of free, shared")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="trials at once; one a core")]
IsolationChoice = Annotated[Isolation, typer.Option(help="how a trial's process begins")]
Storage = Annotated[str | None, typer.Option(help="Optuna storage URL")]
RunDir = Annotated[Path | None, typer.Option(help="the run's folder")]
Resume = Annotated[bool, typer.Option("--resume", help="go on with the last run")]
Seed = Annotated[int, typer.Option(help="of weights, inputs and orders")]
RequireSpeedup = Annotated[
    float | None, typer.Option(help="exit code 1 unless every phase is faster by this factor")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="only list what would be tried, and why not more")
]
ProgressChoice = Annotated[ProgressKind, typer.Option(help="what stderr shows meanwhile")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]


def with_dimensions(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``**dimensions`` an option for each entry of the table.

    They stand before ``--space``, which names a file of the same.
    """
    given = inspect.signature(command, eval_str=True).parameters.values()
    own = [p for p in given if p.kind is not p.VAR_KEYWORD]
    place = [p.name for p in own].index("space")
    hints = {d.parameter: Annotated[list[str] | None, typer.Option(help=d.help)] for d in SEARCHED}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in hints.items()
    ]
    every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    changed: Any = command
    changed.__signature__ = inspect.Signature([*every[:place], *added, *every[place:]])
    command.__annotations__ |= hints
    return command
