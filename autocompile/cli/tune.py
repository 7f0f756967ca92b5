"""``autocompile tune``: search, report, exit code."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autocompile.cli import options
from autocompile.cli.output import print_or_draw, say, show_result
from autocompile.errors import AutocompileError, ExitCode, UsageError
from autocompile.settings.dimensions import SEARCHED, Dimension

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from autocompile.commands.cluster import OnCluster
    from autocompile.space.space import SearchSpace


@options.with_dimensions
def tune(
    target: options.Target,
    *,
    phase: options.Phase = None,
    effort: options.Effort = None,
    budget: options.Budget = None,
    device: options.Device = None,
    resume: options.Resume = False,
    dry_run: options.DryRun = False,
    space: options.Space = None,
    python: options.Python = None,
    calls_per_update: options.CallsPerUpdate = None,
    trials: options.Trials = None,
    sampler: options.Sampler = "portfolio",
    objective: options.Objective = None,
    max_latency: options.MaxLatency = None,
    max_memory: options.MaxMemory = None,
    max_compile_time: options.MaxCompileTime = None,
    require_speedup: options.RequireSpeedup = None,
    tolerance: options.Tolerance = None,
    horizon: options.Horizon = None,
    calls: options.Calls = None,
    seed: options.Seed = None,
    jobs: options.Jobs = None,
    timeout: options.Timeout = 300.0,
    memory_limit: options.MemoryLimit = None,
    wait: options.Wait = False,
    isolation: options.Isolation = "auto",
    ray: options.Ray = None,
    accelerators: options.Accelerators = None,
    run_dir: options.RunDir = None,
    as_json: options.Json = False,
    progress: options.Progress = "auto",
    verbose: options.Verbose = False,
    **dimensions: Any,
) -> None:
    """Find the fastest settings of torch.compile for TARGET.

    \b
    Examples:
      autocompile tune model.py
      autocompile tune model.py --budget 2m --require-speedup 1.05
    """
    from autocompile import api
    from autocompile.estimate.candidates import Limits
    from autocompile.report.live import progress as progress_of
    from autocompile.search.jobs import without_interrupts
    from autocompile.store import runs

    if ray is None and accelerators:
        raise UsageError(
            "--accelerators names machines of a Ray cluster, and --ray none to connect to",
            hint=f"--ray auto --accelerators {','.join(accelerators)}",
        )
    here_alone = {"--dry-run": dry_run, "--wait": wait, "--python": python}
    if ray is not None and (
        option := next((n for n, v in here_alone.items() if v), None)
    ):
        raise UsageError(
            f"{option} is about this machine, and --ray about others",
            hint=f"the same command without {option}, or without --ray",
        )
    plan: dict[str, Any] = {
        "phases": options.words(phase) or None,
        "space": asked(space, dimensions),
        "effort": effort,
        "device": device,
    }
    if dry_run:
        from autocompile.commands.diagnose import preview
        from autocompile.report.checks import render_preview

        settings = preview(target, timeout, tuple(python or ()), calls, **plan)
        print_or_draw(
            settings, as_json, lambda console: render_preview(settings, console)
        )
        return
    longest = dict(max_latency or ())
    request: dict[str, Any] = {
        **plan,
        "trials": trials,
        "budget_s": budget,
        "timeout_s": timeout,
        "jobs": jobs,
        "pythons": tuple(python or ()),
        "sampler": sampler,
        "memory_limit_bytes": memory_limit,
        "objective": objective,
        "limits": Limits(longest.pop("", None), max_memory, max_compile_time, longest),
        "isolation": isolation,
        "run_dir": run_dir,
        "resume": resume,
        "wait": wait,
        "seed": seed,
        "tolerance": tolerance,
        "calls_per_update": calls_per_update,
        "horizon": horizon,
        "calls": calls,
    }
    if ray is not None:
        from autocompile.commands.cluster import tune_all

        kinds = options.words(accelerators) or None
        every = tune_all(target, ray=ray, accelerators=kinds, show=progress, **request)
        _end_all(every, require_speedup, as_json, verbose)
        return
    result = api.tune(target, **request, progress=progress_of(progress, sys.stderr))
    with without_interrupts():
        show_result(
            result.report, str(run_dir or runs.shown(result.run_dir)), as_json, verbose
        )
    _leave([result], require_speedup)


def asked(file: Path | None, typed: Mapping[str, Sequence[str] | None]) -> SearchSpace:
    """The space that a command line asks for; what it names goes before what the file says.

    Args:
        file: in TOML: a list for each dimension; ``"none"`` stands for torch's own choice.
        typed: by parameter of the command: comma lists, as often as the option was typed.
    """
    from autocompile.space.space import SearchSpace

    on_top = {
        d.asked: _typed(d, given) for d in SEARCHED if (given := typed.get(d.parameter))
    }
    lists = _of_file(file) if file else {}
    try:
        SearchSpace(**lists)
    except UsageError as error:
        raise UsageError(
            f"{file}: {error.what}", *error.details, hint=error.hint
        ) from None
    return SearchSpace(**{**lists, **on_top})


def _typed(d: Dimension, given: Sequence[str]) -> tuple[Any, ...]:
    if tuple in d.kinds:
        return tuple(map(_pairs, given))
    if bool in d.kinds:
        none = {"none": None} if type(None) in d.kinds else {}
        return options.choices(d.flag, given, {**none, "true": True, "false": False})
    return options.integers(d.flag, given) if int in d.kinds else options.words(given)


def _pairs(text: str) -> tuple[tuple[str, Any], ...]:
    """``cpp_wrapper=true,cpp.simdlen=256`` as pairs; ``none`` for no options."""
    if text.strip().lower() == "none":
        return ()
    pairs = []
    for part in options.words((text,)):
        name, equals, value = part.partition("=")
        if not equals:
            raise UsageError(
                f"--option {part!r} has no value", hint=f"--option {part}=true"
            )
        read: Any = value.strip()
        with contextlib.suppress(ValueError):
            read = json.loads(read.lower())
        if isinstance(read, (list, dict)):
            raise UsageError(
                f"--option {part!r} is a list or a table, and an option has one value"
            )
        pairs.append((name.strip(), read))
    return tuple(pairs)


def _of_file(path: Path) -> dict[str, Any]:
    """The lists of a file, which are those of a SearchSpace."""
    known = {d.asked: d for d in SEARCHED}
    try:
        lists: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    for name, values in lists.items():
        options.demand_known(f"{path}: key", name, known, "{} = [...]")
        if type(None) in known[name].kinds and isinstance(values, list):
            lists[name] = [None if value == "none" else value for value in values]
        if tuple in known[name].kinds and not _is_list_of_tables(values):
            raise UsageError(
                f"{path}: {name} is not a list of tables whose values are no lists or tables",
                hint=f'{name} = [{{}}, {{ cpp_wrapper = true, "cpp.simdlen" = 256 }}]',
            )
    return lists


def _is_list_of_tables(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(table, dict)
        and not any(isinstance(v, (dict, list)) for v in table.values())
        for table in values
    )


def _end_all(
    outcome: OnCluster, factor: float | None, as_json: bool, verbose: bool
) -> None:
    """Show the result of each type, in one document where it is JSON."""
    from autocompile.search.jobs import without_interrupts

    several = len(outcome.results) > 1
    with without_interrupts():
        if as_json:
            typer.echo(
                json.dumps(
                    {k: r.to_dict() for k, r in outcome.results.items()}, indent=1
                )
            )
        else:
            for kind, result in outcome.results.items():
                if several:
                    typer.echo(f"{kind}\n")
                show_result(result.report, result.run_dir, False, verbose)
                typer.echo()
            if several:
                typer.echo(f"All of them: {outcome.folder / 'table.html'}\n")
        for kind, error in outcome.errors.items():
            if isinstance(error, AutocompileError):
                say(f"error: {kind}: {error.text()}")
            elif isinstance(error, KeyboardInterrupt):
                say(f"{kind}: interrupted before there was anything to report")
    for error in outcome.errors.values():
        if not isinstance(error, (AutocompileError, KeyboardInterrupt)):
            raise error  # a defect, once the results of the others are shown
    if not outcome.interrupted and outcome.errors:
        codes = [
            e.exit_code
            for e in outcome.errors.values()
            if isinstance(e, AutocompileError)
        ]
        raise typer.Exit(max(codes))
    _leave(list(outcome.results.values()), factor, outcome.interrupted)


def _leave(
    results: Sequence[Any], factor: float | None, interrupted: bool = False
) -> None:
    """Turn results into an exit code."""
    if interrupted or any(result.interrupted for result in results):
        raise typer.Exit(ExitCode.INTERRUPTED)
    slow = [
        name
        for result in results
        for name in result.verdict
        if factor is not None and not result.is_faster_by(factor, name)
    ]
    if slow:
        say(
            f"gate: {', '.join(dict.fromkeys(slow))} is not surely faster by {factor:g}x"
        )
        raise typer.Exit(ExitCode.GATE)
