"""The arguments and options of the commands: their types, and what ``--help`` says of them.

Values are read here: a command gets seconds, bytes and numbers, never their text.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from autocompile.cli import options
from autocompile.settings.dimensions import SEARCHED

PANELS = ("Common", "Search", "Limits and CI", "Measuring", "Output")
"""The parts of a long ``--help``, in this order."""
_common, _search, _limits, _measuring, _output = (
    functools.partial(typer.Option, rich_help_panel=panel) for panel in PANELS
)


def time_option(option: str, example: str, help: str, panel: Any = _limits, **more: Any) -> Any:
    """An option that takes a duration."""
    read = options.seconds(option, example)
    return panel(metavar="TIME", parser=read, help=help, **more)


def _size(panel: Any, option: str, help: str) -> Any:
    return panel(metavar="SIZE", parser=options.size(option), help=help)


def known_runs(beginning: str) -> list[str]:
    """The runs that a shell may complete to."""
    from autocompile.store import runs

    names = [p.parent.name for p in runs.under.glob("*/run.json")]
    return [n for n in ("last", *sorted(names)) if n.startswith(beginning)]


Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="model.py, PATH:NAME or package.module:NAME")
]
_run = functools.partial(typer.Argument, autocompletion=known_runs)
Run = Annotated[str, _run(metavar="RUN", help="a folder, its short name, or last")]
RunA = Annotated[str, _run(metavar="A", help="a run, or its report.json")]
RunB = Annotated[str, _run(metavar="B", help="a run, or its report.json")]
Json = Annotated[bool, _output("--json", help="print one JSON document and nothing else")]
Verbose = Annotated[bool, _output("--verbose", "-v", help="say more")]
Tolerance = Annotated[
    float | None,
    _measuring(
        metavar="FRACTION",
        parser=options.fraction("--tolerance"),
        help="how far outputs may differ, as 0.01; by dtype if left out",
    ),
]
Device = Annotated[
    str | None, _common(metavar="NAME", help="cpu, cuda or cuda:1; a GPU where there is one")
]
_LONGEST = "end a trial that stays longer in one step; 300s if left out"
Timeout = Annotated[
    float, time_option("--timeout", "300s", _LONGEST, _measuring, show_default=False)
]
TIMEOUT_S = 300.0
Format = Literal["python", "script", "json", "rllib", "accelerate", "transformers", "lightning"]

# Of tune -----------------------------------------------------------------------------------------

Phase = Annotated[
    list[str] | None,
    _common(metavar="LIST", help="what to time; two phases of the target if left out"),
]
Effort = Annotated[
    Literal["quick", "normal", "full"],
    _common(metavar="LEVEL", help="quick: 90 s, normal: 5 min, full: every setting"),
]
Budget = Annotated[
    float | None,
    time_option("--budget", "90s or 10m", "end the whole run after this time, as 10m", _common),
]
Resume = Annotated[bool, _common("--resume", help="go on with the last run of the target")]
DryRun = Annotated[
    bool, _common("--dry-run", help="list what would be tried, and what not and why")
]

Space = Annotated[
    Path | None, _search(metavar="FILE", help="read such lists from TOML; options go before it")
]
CallsPerUpdate = Annotated[
    int | None, _search(metavar="N", min=1, help="how often weights are used before they change")
]
Python = Annotated[
    list[str] | None,
    _search(metavar="PATH", help="try this interpreter too, as PATH or NAME=PATH; repeatable"),
]
Trials = Annotated[int | None, _search(metavar="N", min=1, help="start at most this many trials")]
Sampler = Annotated[
    Literal["portfolio", "tpe", "gp", "random"],
    _search(metavar="NAME", help="portfolio, or Optuna's tpe, gp or random"),
]
Storage = Annotated[str | None, _search(metavar="URL", help="keep Optuna's study in this database")]

Objective = Annotated[
    Literal["throughput", "latency"], _limits(metavar="NAME", help="throughput or latency")
]
MaxLatency = Annotated[
    float | None,
    time_option("--max-latency", "5ms", "choose only settings whose call is shorter"),
]
MaxMemory = Annotated[
    int | None, _size(_limits, "--max-memory", "choose only settings that need less, as 2GiB")
]
MaxCompileTime = Annotated[
    float | None,
    time_option("--max-compile-time", "60s", "choose only settings that compile faster"),
]
RequireSpeedup = Annotated[
    float | None,
    _limits(metavar="FACTOR", help="exit with 1 unless every phase is surely this much faster"),
]

_MOST = "end a trial that needs more; its share of 80 % of what is free if left out"
MemoryLimit = Annotated[int | None, _size(_measuring, "--memory-limit", _MOST)]
Jobs = Annotated[
    int | None, _measuring(metavar="N", min=1, help="compile side by side; one a core if left out")
]
Isolation = Annotated[
    Literal["auto", "fork", "spawn"],
    _measuring(metavar="KIND", help="how trials start: auto, fork or spawn"),
]
Seed = Annotated[int, _measuring(metavar="N", help="of weights, inputs and orders")]

RunDir = Annotated[
    Path | None, _output(metavar="FOLDER", help="keep the run here; in ./runs if left out")
]
Progress = Annotated[
    Literal["auto", "plain", "none"],
    _output(metavar="KIND", help="what stderr shows: auto, plain or none"),
]
Quiet = Annotated[bool, _output("--quiet", "-q", help="show no progress")]


def with_dimensions(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``**dimensions`` an option for each entry of the table.

    They stand before ``--space``, which names a file of the same.
    """
    *own, _ = inspect.signature(command, eval_str=True).parameters.values()
    place = [p.name for p in own].index("space")
    hints = {
        d.parameter: Annotated[list[str] | None, _search(metavar="LIST", help=d.help)]
        for d in SEARCHED
    }
    own[place:place] = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in hints.items()
    ]
    changed: Any = command
    changed.__signature__ = inspect.Signature(
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    )
    command.__annotations__ |= hints
    return command
