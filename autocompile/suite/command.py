"""``autocompile suite``: many models, one table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autocompile.cli import options
from autocompile.cli.help import HelpAll
from autocompile.cli.output import print_or_draw, say, write
from autocompile.errors import ExitCode, UsageError
from autocompile.settings.option import COMMON, FILE, NAME, OUTPUT, Declared, Kept

if TYPE_CHECKING:
    from autocompile.report.document import Document
    from autocompile.suite.rows import Suite

_WHAT = "timm, transformers, diffusers, a folder of targets, or a list.toml"
What = Annotated[str | None, typer.Argument(metavar="[SUITE]", help=_WHAT)]
_FIXED = "time each backend, mode and batch size that is named, and nothing else"
Fixed = Annotated[bool, options.switch("--fixed", _FIXED, COMMON)]
_COMPARE = "an earlier suite's folder or suite.json: say what became slower, broke or works now"
Compare = Annotated[str | None, options.own(NAME, "--compare", _COMPARE, COMMON)]
_GATES = "no-regression: exit with 1 if anything became slower or broke since --compare"
Gate = Annotated[str | None, options.own(NAME, "--require", _GATES, COMMON)]
_CSV = "write the columns of dynamo's runner"
Csv = Annotated[Path | None, options.own(FILE, "--csv", _CSV, OUTPUT)]
_MARKDOWN = "write the tables"
Markdown = Annotated[Path | None, options.own(FILE, "--markdown", _MARKDOWN, OUTPUT)]
_WHOLE = "of the whole suite, as 2h; 90 s a model and phase if left out"
_RESUME = "go on with the last suite, or that in --run-dir, and its options"
_OF_THE_SUITE = ("phases", "budget_s", "resume", "wait", "run_dir")


def _takes() -> list[Declared]:
    """What every member gets, and what is about the whole suite."""
    changes = {"budget_s": {"help": _WHOLE}, "resume": {"help": _RESUME}}
    kept = {
        name.partition(".")[0]
        for name, each in options.DECLARED.items()
        if Kept.SUITE in each.option.kept
    }
    return [
        options.named(name, **changes.get(name, {}))
        for name in options.DECLARED
        if name.partition(".")[0] in {*kept, *_OF_THE_SUITE}
    ]


@options.takes(_takes())
def suite(
    context: typer.Context,
    asked: options.Asked,
    what: What = None,
    fixed: Fixed = False,
    compare: Compare = None,
    require: Gate = None,
    csv: Csv = None,
    markdown: Markdown = None,
    as_json: options.Json = False,
    progress: options.Progress = "auto",
    verbose: options.Verbose = False,
    help_all: HelpAll = False,
) -> None:
    """Tune many models and make one table of them.

    \b
    Examples:
      autocompile suite transformers --budget 1h --csv table.csv
      autocompile suite models/ --compare runs/models-0001 --require no-regression
      autocompile suite list.toml --fixed --backend inductor,cudagraphs --batch-size 1,4,16
    """
    from autocompile.api import Parts
    from autocompile.request import Request
    from autocompile.suite.rows import Suite
    from autocompile.suite.runner import run_suite

    # Before the suite, so that a mistake in these does not cost its hours.
    _demand_gate(require, compare)
    earlier = Suite.read(_folder(compare)) if compare else None

    tell = say if progress != "none" else _say_nothing
    request = Request.of("", options.given(asked))
    parts = Parts(progress=progress, began=context.obj)
    folder, found = run_suite(what, request, parts, fixed=fixed, say=say, note=tell)

    tables = _Tables(found, earlier, folder)
    page = folder / "suite.html"
    tables.write(page, csv, markdown)
    tables.print(as_json, verbose)
    tell(f"\nAll of it: {page}")
    _end(found, earlier if require else None)


@dataclass(frozen=True)
class _Tables:
    """The tables of a suite, beside an earlier one if there is one."""

    found: Suite
    earlier: Suite | None
    folder: Path

    @cached_property
    def document(self) -> Document:
        from autocompile.suite.tables import suite_document

        return suite_document(self.found, self.earlier, self.folder)

    def print(self, as_json: bool, verbose: bool) -> None:
        from autocompile.report.terminal import Page
        from autocompile.suite.tables import differences

        data = self.found.to_dict()
        if self.earlier:
            data["against"] = differences(self.found, self.earlier)

        def draw(console: Any) -> None:
            Page(console).document(self.document, verbose)

        print_or_draw(data, as_json, draw)

    def write(self, page: Path, csv: Path | None, markdown: Path | None) -> None:
        """Write the page, and the files that were asked for."""
        from autocompile.report.page import as_page
        from autocompile.suite.tables import to_csv, to_markdown

        write(page, as_page(self.document))
        if csv is not None:
            write(csv, to_csv(self.found))
        if markdown is not None:
            write(markdown, to_markdown(self.document))


def _say_nothing(text: str) -> None:
    """Stands for :func:`say` under ``--progress none``."""


def _demand_gate(require: str | None, compare: str | None) -> None:
    """Raise a UsageError unless a gate is one that there is, with a suite to compare with."""
    if require is None:
        return
    if require != "no-regression" or compare is None:
        raise UsageError(
            f"--require {require} is about an earlier suite: there is no-regression",
            hint="--compare runs/timm-0001 --require no-regression",
        )


def _end(found: Suite, required: Suite | None) -> None:
    """Exit as the suite ended.

    Args:
        required: a suite of which nothing may have become slower, broken or missing.
    """
    from autocompile.suite import tables

    # What was interrupted is not complete, so that a gate would find rows missing.
    if found.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if required:
        changes = tables.differences(found, required)
        lost = [*changes["slower"], *changes["broke"], *changes["missing"]]
        if not lost and not tables.is_comparable(found, required):
            lost = ["there is nothing to compare"]
        if lost:
            say(f"gate: {'; '.join(lost)}")
            raise typer.Exit(ExitCode.GATE)
    # Nothing worked for any model, which a script has to notice.
    if not any(row.best for row in found.rows):
        raise typer.Exit(ExitCode.GATE)


def _folder(name: str) -> Path:
    from autocompile.store import runs

    path = Path(name)
    return path if path.exists() else runs.under / name
