"""``autocompile init``, ``check``, ``doctor`` and ``verify``: a file to start from, what works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autocompile.cli import options
from autocompile.cli.output import print_or_draw, say, write
from autocompile.errors import ExitCode, UsageError
from autocompile.request import Request
from autocompile.settings.option import COUNT, NAME, named_numbers
from autocompile.settings.searchspace import SearchSpace

if TYPE_CHECKING:
    from autocompile.settings.tuned import TunedSet
    from autocompile.store.record import RunFolder

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
    typer.echo(f"wrote {path}\nNext    {Request(str(path)).command()}")


_SIZE = "of the inputs; 4 if left out"


@options.takes(
    options.named(name, panel="")
    for name in ("phases", "device", "timeout_s", "tolerance", "calls")
)
def check(
    target: options.Target,
    asked: options.Asked,
    batch_size: Annotated[int, options.own(COUNT, "--batch-size", _SIZE)] = 4,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Run TARGET eagerly and under plain torch.compile(), and compare."""
    from autocompile.commands import diagnose
    from autocompile.report import checks
    from autocompile.store.targets import target_spec

    space = SearchSpace(batch_sizes=(batch_size,))
    given = {**options.given(asked), "space": space}
    request = Request.of(target_spec(target), given)
    say(f"calls {target} in eager mode, and compiles each phase once")
    results = diagnose.check(request, calls=given.get("calls"))
    print_or_draw(
        results, as_json, lambda console: checks.render_check(results, console, verbose)
    )
    if not all(row["outcome"] == "ok" for row in results["phases"].values()):
        raise typer.Exit(ExitCode.GATE)


@options.takes([options.named("device", panel="")])
def doctor(
    asked: options.Asked,
    backend: Annotated[
        str | None, typer.Argument(metavar="BACKEND", help="only this one")
    ] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Say which backends and modes work here, and what the others need."""
    from autocompile.commands import diagnose
    from autocompile.report import checks

    results = diagnose.doctor(backend, options.given(asked).get("device"))
    print_or_draw(
        results,
        as_json,
        lambda console: checks.render_doctor(results, console, verbose),
    )


_GATES = "speedup=1.05, max-graphs=1, max-recompiles=0, max-compile-time=60s"
Settings = Annotated[
    str, typer.Argument(metavar="FILE|RUN", help="settings, as tuned.json, or a run")
]
_MOVED = "where the target is now, if it has moved"
Moved = Annotated[str | None, options.own(NAME, "--target", _MOVED)]
Require = Annotated[
    list[str] | None,
    options.texts("LIST", "--require", f"fail unless met: {_GATES}"),
]
_WHOLE = "train RLlib's own algorithm with and without them"
InAlgorithm = Annotated[bool, options.switch("--in-algorithm", _WHOLE)]
_BUDGET_S = 120.0
_OF_VERIFY = {
    "budget_s": "end the whole command after this time; 2m if left out",
    "device": "cpu, cuda or cuda:1; the settings' own if left out",
    "pythons": "where an interpreter of the settings is now, as NAME=PATH; repeatable",
    "calls": "what the model is called with, as tune takes it; the settings' own if left out",
    "timeout_s": "end a trial that stays longer in one step; 300s if left out",
    "wait": "wait until no other autocompile is at work on this machine",
}


@options.takes(
    options.named(name, help=help, panel="") for name, help in _OF_VERIFY.items()
)
def verify(
    context: typer.Context,
    asked: options.Asked,
    settings: Settings = "last",
    target: Moved = None,
    require: Require = None,
    in_algorithm: InAlgorithm = False,
    as_json: options.Json = False,
    progress: options.Progress = "auto",
) -> None:
    """Try settings again, beside eager mode and plain torch.compile()."""
    from autocompile.commands import verify as verifying
    from autocompile.report.checks import render_verified

    required = named_numbers("--require", require, verifying.REQUIREMENTS)
    given = {"budget_s": _BUDGET_S, **options.given(asked)}
    chosen = _Chosen.named(settings)
    if in_algorithm:
        _demand_nothing_of_settings(require, given)
        _compare_in_algorithm(chosen, target, given, as_json, progress)
        return
    tuned, began = chosen.tuned, context.obj
    verified = verifying.verify(tuned, target, required, given, progress, began)
    print_or_draw(verified, as_json, lambda console: render_verified(verified, console))
    if verified["interrupted"]:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not verified["is_good"]:
        raise typer.Exit(ExitCode.GATE)


@dataclass(frozen=True)
class _Chosen:
    """Settings to try again, and the run that they are of; None: they are of a file."""

    tuned: TunedSet
    run: RunFolder | None

    @classmethod
    def named(cls, name: str) -> _Chosen:
        from autocompile import api
        from autocompile.settings.tuned import TunedSet
        from autocompile.store import runs

        if name.endswith(".json"):
            return cls(TunedSet.read(name), None)
        # Found once: another run may be the last one soon.
        run = runs.find(name)
        return cls(TunedSet.read(api.load(run.path)), run)


def _demand_nothing_of_settings(
    require: list[str] | None, given: Mapping[str, Any]
) -> None:
    """Raise a UsageError if options are given that a whole training cannot follow."""
    if require or {"device", "pythons", "calls", "wait"} & given.keys():
        raise UsageError(
            "--require, --device, --python, --calls and --wait are about the settings alone, "
            "and --in-algorithm about a whole training"
        )


def _compare_in_algorithm(
    chosen: _Chosen,
    target: str | None,
    given: Mapping[str, Any],
    as_json: bool,
    progress: str,
) -> None:
    """Train RLlib's algorithm with and without the settings, and show what they gain."""
    from autocompile.commands.verify import entry_here
    from autocompile.rllib.gain import compare_in_algorithm
    from autocompile.rllib.shown import render_in_algorithm
    from autocompile.store.files import write_json

    if progress != "none":
        about_s = f"{given['budget_s']:.0f} s"
        say(f"trains with and without the settings, in turns, for about {about_s}")
    request = Request.of(target or entry_here(chosen.tuned).target, given)
    comparison = compare_in_algorithm(request, chosen.tuned)
    if chosen.run is not None:
        # The run's report has the figures from now on.
        write_json(chosen.run.in_algorithm, comparison["figures"])

    def draw(console: Any) -> None:
        render_in_algorithm(comparison, console)

    print_or_draw(comparison, as_json, draw)
