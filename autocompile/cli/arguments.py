"""The options of the commands: what ``--help`` says of them, and how their values are read.

Commands are plain functions; :func:`with_options` gives their parameters the options of the table,
so that a command gets seconds, bytes and numbers, never their text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import typer

from autocompile.cli import options
from autocompile.settings.dimensions import SEARCHED

Effort = Literal["quick", "normal", "full"]
Sampler = Literal["portfolio", "tpe", "random"]
Objective = Literal["throughput", "latency"]
Format = Literal["python", "json", "rllib", "accelerate", "transformers", "lightning"]
Isolation = Literal["auto", "fork", "spawn"]
ProgressKind = Literal["auto", "plain", "none"]

PANELS: dict[str, dict[str, tuple[Any, ...]]] = {
    "Common": {
        "phase": ("LIST", "what to time; two phases of the target if left out"),
        "effort": ("LEVEL", "quick: 90 s, normal (if left out): 5 min, full: every setting"),
        "budget": ("TIME", "end the whole run after this time, as 10m", "90s or 10m"),
        "device": ("NAME", "cpu, cuda or cuda:1; a GPU where there is one"),
        "resume": ("--resume", "go on with the last run of the target"),
        "dry_run": ("--dry-run", "list what would be tried, and what not and why"),
    },
    "Search": {
        **{d.parameter: ("LIST", d.help) for d in SEARCHED},
        "space": ("FILE", "read such lists from TOML; options go before it"),
        "python": ("PATH", "try this interpreter too, as PATH or NAME=PATH; repeatable"),
        "calls_per_update": ("N", "how often weights are used before they change", 1),
        "trials": ("N", "start at most this many trials", 1),
        "sampler": ("NAME", "portfolio, or Optuna's tpe or random"),
        "storage": ("URL", "keep Optuna's study in this database"),
    },
    "Limits and CI": {
        "objective": ("NAME", "throughput (if left out) or latency"),
        "max_latency": ("TIME", "choose only settings whose call is shorter", "5ms"),
        "max_memory": ("SIZE", "choose only settings that need less, as 2GiB"),
        "max_compile_time": ("TIME", "choose only settings that compile faster", "60s"),
        "require_speedup": ("FACTOR", "exit with 1 unless every phase is surely this much faster"),
        "require": (
            "LIST",
            "fail unless these are met: speedup=1.05, max-graphs=1, max-recompiles=0, "
            "max-compile-time=60s",
        ),
        "junit": ("FILE", "write JUnit XML too, for CI"),
        "github": ("--github", "annotate the run of GitHub Actions that this is in"),
        "in_algorithm": ("--in-algorithm", "train RLlib's own algorithm with and without them"),
    },
    "Measuring": {
        "tolerance": ("FRACTION", "how far outputs may differ, as 0.01; by dtype if left out"),
        "seed": ("N", "of weights, inputs and orders; 0 if left out"),
        "jobs": ("N", "compile side by side; one a core if left out", 1),
        "timeout": ("TIME", "end a trial that stays longer in one step; 300s if left out", "300s"),
        "memory_limit": (
            "SIZE",
            "end a trial that needs more; its share of 80 % of what is free if left out",
        ),
        "wait": ("--wait", "wait until no other autocompile is at work on this machine"),
        "isolation": ("KIND", "how trials start: auto, fork or spawn"),
    },
    "Other machines": {
        "ray": ("ADDRESS", "use the stations of a Ray cluster, as auto or HOST:PORT"),
        "accelerators": (
            "LIST",
            "a run for each of these types, as H100,T4,cpu; all that the cluster has if left out",
        ),
    },
    "Output": {
        "run_dir": ("FOLDER", "keep the run here; in ./runs if left out"),
        "as_json": ("--json", "print one JSON document and nothing else"),
        "progress": ("KIND", "what stderr shows: auto, plain or none"),
        "quiet": ("--quiet -q", "show no progress"),
        "verbose": ("--verbose -v", "say more"),
        "schema": ("--schema", "print the JSON schema of report.json, of no run"),
        "html": ("--html", "write report.html anew and print its path"),
        "browse": ("--open", "the same, and open it in a browser"),
    },
}
"""The parts of a long ``--help``, in this order. By parameter: how a flag is typed or what a value
is called, the help, and of some an example of a duration or the least number.
"""

Command = TypeVar("Command", bound=Callable[..., None])
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="model.py, PATH:NAME or package.module:NAME")
]


def with_options(**own: tuple[Any, ...]) -> Callable[[Command], Command]:
    """Make options of a command's parameters by the table; what is annotated in full stays.

    ``**dimensions`` become an option for each dimension of the settings, before ``--space``.

    Args:
        own: what differs from the table in this command.
    """
    rows = {name: (panel, *row) for panel, part in PANELS.items() for name, row in part.items()}
    rows |= {name: ("Common", *row) for name, row in own.items()}

    def option(name: str, kind: Any, default: Any) -> inspect.Parameter:
        is_done = hasattr(kind, "__metadata__")
        hint = kind if is_done else _annotation(name, kind, *rows[name])
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint
        )

    def change(command: Command) -> Command:
        found: list[inspect.Parameter] = []
        for p in inspect.signature(command, eval_str=True).parameters.values():
            if p.name == "space":
                found += [option(d.parameter, list[str] | None, None) for d in SEARCHED]
            if p.kind is not p.VAR_KEYWORD:
                found.append(option(p.name, p.annotation, p.default))
        changed: Any = command
        changed.__signature__ = inspect.Signature(found)
        changed.__annotations__ = {p.name: p.annotation for p in found}
        return command

    return change


def _annotation(name: str, kind: Any, panel: str, word: str, help: str, more: Any = None) -> Any:
    """For Typer; how a value is read follows from what it is called."""
    if kind is bool:
        return Annotated[kind, typer.Option(*word.split(), help=help, rich_help_panel=panel)]
    flag = f"--{name.replace('_', '-')}"
    readers: dict[str, Any] = {
        "TIME": options.seconds(flag, str(more)),
        "SIZE": options.size(flag),
        "FRACTION": options.fraction(flag),
        "FACTOR": options.number(flag),
    }
    info = typer.Option(
        metavar=word,
        parser=readers.get(word),
        min=more if word == "N" else None,
        show_default=word != "TIME",
        help=help,
        rich_help_panel=panel,
    )
    return Annotated[kind, info]
