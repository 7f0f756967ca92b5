"""The options of the commands: what ``--help`` says, and how values are read.

A command gets seconds, bytes and numbers, never their text. Every mistake is a UsageError.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from autocompile.errors import UsageError
from autocompile.settings.dimensions import SEARCHED
from autocompile.store.calls import PERCENTILES

# How values are read ----------------------------------------------------------------------------

Value = TypeVar("Value")
_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")
_NONE = {"": 1.0}
_TIME = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZE = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_SIZE |= {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}


def words(given: Iterable[str] | None) -> tuple[str, ...]:
    """Comma lists: ``["a, b", "c"]`` is ``("a", "b", "c")``."""
    parts = (part.strip() for text in given or () for part in text.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def choices(
    option: str, given: Iterable[str], known: Mapping[str, Value]
) -> tuple[Value, ...]:
    """Comma lists of known words, as their values."""
    parts = [part.lower() for part in words(given)]
    for part in parts:
        demand_known(option, part, known, f"{option} {{}}")
    return tuple(known[part] for part in parts)


def integers(option: str, given: Iterable[str]) -> tuple[int, ...]:
    """Comma lists of whole numbers."""
    parts = words(given)
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        text = ",".join(parts)
        raise UsageError(
            f"{option} {text!r} is not a list of whole numbers like 1,4,16"
        ) from None


def numbers(
    option: str, given: Iterable[str] | None, known: Mapping[str, str]
) -> dict[str, float]:
    """``["speedup=1.05, max-compile-time=2m"]`` by name; seconds of what is a time.

    Args:
        known: what each is, ``a number`` or ``a duration``.
    """
    values = {}
    for part in words(given):
        name, _, text = part.partition("=")
        demand_known(option, name, known, f"{option} {{}}=1")
        units = _TIME if known[name] == "a duration" else _NONE
        value = _amount(text, units, has_zero=True)
        if value is None:
            example = f"{name}=60s" if units is _TIME else f"{name}=1"
            raise UsageError(
                f"{option} {name} {text!r} is not {known[name]} (try {example})"
            )
        values[name] = value
    return values


def demand_known(what: str, part: str, known: Iterable[str], hint: str) -> None:
    """Raise a UsageError if a word is none of the known; ``{}`` of the hint is the nearest."""
    names = list(known)
    if part not in names:
        close = difflib.get_close_matches(part, names, 1)
        raise UsageError(
            f"{what} {part!r} is none of {', '.join(names)}",
            hint=hint.format(close[0]) if close else None,
        )


def _amount(
    text: str, units: Mapping[str, float], has_zero: bool = False
) -> float | None:
    match = _AMOUNT.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    value = float(match[1]) * unit if match and unit else math.nan
    return (
        value if (value > 0 or (has_zero and value == 0)) and value < math.inf else None
    )


def _one(
    text: Any, units: Mapping[str, float], expected: str, below: float = math.inf
) -> float:
    """The value of an option that has one, from what was typed or is its default."""
    value = _amount(str(text), units)
    if value is None or value >= below:
        raise typer.BadParameter(f"{text!r} is not {expected}")
    return value


def _latency(text: str) -> tuple[str, float]:
    """``p95=10ms`` as name and seconds; the name of ``10ms`` is empty."""
    name, equals, time = text.rpartition("=")
    if equals:
        demand_known("--max-latency", name, PERCENTILES, "--max-latency {}=10ms")
    return name, _READERS["TIME"](time)


# What help says ---------------------------------------------------------------------------------

_READERS: Mapping[str | None, Callable[[Any], Any]] = {
    "TIME": lambda text: _one(text, _TIME, "a duration (try 5ms, 90s or 10m)"),
    "SIZE": lambda text: int(_one(text, _SIZE, "a size (try 2GiB)")),
    "[P=]TIME": _latency,
    "FACTOR": lambda text: _one(text, _NONE, "a number above 0 (try 1.05)"),
    "FRACTION": lambda text: _one(
        text, _NONE, "a number between 0 and 1 like 0.001", 1.0
    ),
}
"""How a value is read follows from what it is called; Typer reads the rest."""


def option(word: str, help: str, panel: str = "", **more: Any) -> Any:
    """An option with a value, in a part of a long ``--help``."""
    return typer.Option(
        metavar=word,
        parser=_READERS.get(word),
        show_default=word != "TIME",
        help=help,
        rich_help_panel=panel,
        **more,
    )


def flag(names: str, help: str, panel: str = "") -> Any:
    """An option without a value."""
    return typer.Option(*names.split(), help=help, rich_help_panel=panel)


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="model.py, PATH:NAME, package.module:NAME or timm:NAME"
    ),
]
_Text = str | None
_List = list[str] | None
_Amount = float | None
_Count = int | None

_common = functools.partial(option, panel="Common")
Phase = Annotated[
    _List, _common("LIST", "what to time; two phases of the target if left out")
]
_LEVELS = "quick: 90 s, normal (if left out): 5 min, full: every setting"
Effort = Annotated[Literal["quick", "normal", "full"] | None, _common("LEVEL", _LEVELS)]
Budget = Annotated[
    _Amount, _common("TIME", "end the whole run after this time, as 10m")
]
Device = Annotated[
    _Text, _common("NAME", "cpu, cuda or cuda:1; a GPU where there is one")
]
Resume = Annotated[
    bool, flag("--resume", "go on with the last run of the target", "Common")
]
_DRY = "list what would be tried, and what not and why"
DryRun = Annotated[bool, flag("--dry-run", _DRY, "Common")]

_search = functools.partial(option, panel="Search")
Space = Annotated[
    Path | None, _search("FILE", "read such lists from TOML; options go before it")
]
_PATHS = "try this interpreter too, as PATH or NAME=PATH; repeatable"
Python = Annotated[_List, _search("PATH", _PATHS)]
_CALLS = "how often weights are used before they change"
CallsPerUpdate = Annotated[_Count, _search("N", _CALLS, min=1)]
Trials = Annotated[_Count, _search("N", "start at most this many trials", min=1)]
_SAMPLERS = "portfolio, or Optuna's tpe or random"
Sampler = Annotated[Literal["portfolio", "tpe", "random"], _search("NAME", _SAMPLERS)]

_limit = functools.partial(option, panel="Limits and CI")
Objective = Annotated[
    Literal["throughput", "latency"] | None,
    _limit("NAME", "throughput (if left out) or latency"),
]
_SHORTER = "choose only settings whose call is shorter, of every shape; p95=10ms limits a percentile"
MaxLatency = Annotated[list[Any] | None, _limit("[P=]TIME", _SHORTER)]
MaxMemory = Annotated[
    _Count, _limit("SIZE", "choose only settings that need less, as 2GiB")
]
MaxCompileTime = Annotated[
    _Amount, _limit("TIME", "choose only settings that compile faster")
]
_GATE = "exit with 1 unless every phase is surely this much faster"
RequireSpeedup = Annotated[_Amount, _limit("FACTOR", _GATE)]

_measuring = functools.partial(option, panel="Measuring")
_RELATIVE = "how far outputs may differ, as 0.01; by dtype if left out"
Tolerance = Annotated[_Amount, _measuring("FRACTION", _RELATIVE)]
Seed = Annotated[
    _Count, _measuring("N", "of weights, inputs and orders; 0 if left out")
]
_PROGRAM = "that a program makes, over which compile time counts; many if left out"
Horizon = Annotated[_Count, _measuring("N", f"calls {_PROGRAM}", min=1)]
_RECORDED = "a file of autocompile.record: what the model is called with"
Calls = Annotated[Path | None, _measuring("FILE", _RECORDED)]
Jobs = Annotated[
    _Count, _measuring("N", "compile side by side; one a core if left out", min=1)
]
_STEP = "end a trial that stays longer in one step; 300s if left out"
Timeout = Annotated[float, _measuring("TIME", _STEP)]
_SHARE = "end a trial that needs more; its share of 80 % of what is free if left out"
MemoryLimit = Annotated[_Count, _measuring("SIZE", _SHARE)]
_OTHER = "wait until no other autocompile is at work on this machine"
Wait = Annotated[bool, flag("--wait", _OTHER, "Measuring")]
_STARTS = "how trials start: auto, fork or spawn"
Isolation = Annotated[Literal["auto", "fork", "spawn"], _measuring("KIND", _STARTS)]

_others = functools.partial(option, panel="Other machines")
Ray = Annotated[
    _Text, _others("ADDRESS", "use the stations of a Ray cluster, as auto or HOST:PORT")
]
_TYPES = "a run for each of these types, as H100,T4,cpu; all that the cluster has if left out"
Accelerators = Annotated[_List, _others("LIST", _TYPES)]

_output = functools.partial(option, panel="Output")
RunDir = Annotated[
    Path | None, _output("FOLDER", "keep the run here; in ./runs if left out")
]
Json = Annotated[
    bool, flag("--json", "print one JSON document and nothing else", "Output")
]
_SHOWN = "what stderr shows: auto, plain or none"
Progress = Annotated[Literal["auto", "plain", "none"], _output("KIND", _SHOWN)]
Verbose = Annotated[bool, flag("--verbose -v", "say more", "Output")]


def with_dimensions(command: Callable[..., None]) -> Callable[..., None]:
    """Replace ``**dimensions`` of a command by an option for each, before ``--space``."""
    parameters: list[inspect.Parameter] = []
    for p in inspect.signature(command, eval_str=True).parameters.values():
        if p.name == "space":
            kinds = {
                d.parameter: Annotated[_List, _search("LIST", d.help)] for d in SEARCHED
            }
            parameters += [
                p.replace(name=n, annotation=kind) for n, kind in kinds.items()
            ]
        if p.kind is not p.VAR_KEYWORD:
            parameters.append(p)
    changed: Any = command
    changed.__signature__ = inspect.Signature(parameters)
    changed.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
