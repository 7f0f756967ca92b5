"""``autocompile suite``: many models, one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autocompile.cli import options
from autocompile.cli.output import print_or_draw, say, write
from autocompile.errors import ExitCode, UsageError

_WHAT = "timm, transformers, diffusers, a folder of targets, or a list.toml"
What = Annotated[str | None, typer.Argument(metavar="[SUITE]", help=_WHAT)]
_FIXED = "time each backend, mode and batch size that is named, and nothing else"
_COMPARE = "an earlier suite's folder or suite.json: say what became slower, broke or works now"
_GATES = "no-regression: exit with 1 if anything became slower or broke since --compare"
_CSV = "write the columns of dynamo's runner"
_WHOLE = "of the whole suite, as 2h; 90 s a model and phase if left out"


@options.with_dimensions
def suite(
    what: What = None,
    *,
    phase: options.Phase = None,
    effort: options.Effort = None,
    budget: Annotated[float | None, options.option("TIME", _WHOLE, "Common")] = None,
    device: options.Device = None,
    resume: options.Resume = False,
    fixed: Annotated[bool, options.flag("--fixed", _FIXED, "Common")] = False,
    compare: Annotated[str | None, options.option("RUN", _COMPARE, "Common")] = None,
    require: Annotated[str | None, options.option("GATE", _GATES, "Common")] = None,
    space: options.Space = None,
    tolerance: options.Tolerance = None,
    seed: options.Seed = None,
    jobs: options.Jobs = None,
    timeout: options.Timeout = 300.0,
    memory_limit: options.MemoryLimit = None,
    wait: options.Wait = False,
    ray: options.Ray = None,
    csv: Annotated[
        Path | None, options.option("FILE", "dynamo's runner's columns", "Output")
    ] = None,
    markdown: Annotated[
        Path | None, options.option("FILE", "the tables", "Output")
    ] = None,
    run_dir: options.RunDir = None,
    as_json: options.Json = False,
    progress: options.Progress = "auto",
    verbose: options.Verbose = False,
    **dimensions: Any,
) -> None:
    """Tune many models and make one table of them.

    \b
    Examples:
      autocompile suite transformers --budget 1h --csv table.csv
      autocompile suite models/ --compare runs/models-0001 --require no-regression
      autocompile suite list.toml --fixed --backend inductor,cudagraphs --batch-size 1,4,16
    """
    from autocompile.cli.tune import asked
    from autocompile.commands.suite import run_suite
    from autocompile.report import suite as shown
    from autocompile.report.page import as_page
    from autocompile.report.terminal import Page
    from autocompile.store.report import Suite

    if require not in (None, "no-regression") or (require and compare is None):
        raise UsageError(
            f"--require {require} is about an earlier suite: there is no-regression",
            hint="--compare runs/timm-0001 --require no-regression",
        )
    earlier = Suite.read(_folder(compare)) if compare else None
    tell = say if progress != "none" else lambda text: None
    folder, found = run_suite(
        what,
        phases=options.words(phase) or None,
        space=asked(space, dimensions),
        fixed=fixed,
        budget_s=budget,
        run_dir=run_dir,
        resume=resume,
        ray=ray,
        progress=progress,
        say=say,
        note=tell,
        effort=effort,
        device=device,
        tolerance=tolerance,
        seed=seed,
        jobs=jobs,
        timeout_s=timeout,
        memory_limit_bytes=memory_limit,
        wait=wait,
    )
    changes = shown.differences(found, earlier) if earlier else {}
    document = shown.document(found, earlier)
    data = {**found.to_dict(), **({"against": changes} if earlier else {})}
    print_or_draw(
        data, as_json, lambda console: Page(console).document(document, verbose)
    )
    write(folder / "suite.html", as_page(document))
    for path, text in (
        (csv, shown.to_csv(found)),
        (markdown, shown.to_markdown(document)),
    ):
        if path is not None:
            write(path, text)
    tell(f"\nAll of it: {folder / 'suite.html'}")
    if found.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    lost = [
        name
        for word in ("slower", "broke", "missing")
        for name in changes.get(word, ())
    ]
    if require and not any(row.best for row in found.rows):
        lost = lost or ["there is nothing to compare"]
    if require and lost:
        say(f"gate: {'; '.join(lost)}")
        raise typer.Exit(ExitCode.GATE)
    if not any(row.best for row in found.rows):
        raise typer.Exit(ExitCode.GATE)


def _folder(name: str) -> Path:
    from autocompile.store import runs

    path = Path(name)
    return path if path.exists() else runs.under / name
