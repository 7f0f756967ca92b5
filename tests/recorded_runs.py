"""What autocompile says of recorded runs, in every form: screen, JSON and each export.

    python tests/recorded_runs.py                # writes data/runs/NAME/ anew
    python tests/recorded_runs.py runs/NAME ...  # packs runs first

``data/runs/README.md`` says what the runs are and lists each change of these texts.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from autocompile import load
from autocompile.cli.commands import app
from autocompile.cli.output import show_result
from autocompile.commands.listing import read_report
from autocompile.errors import AutocompileError
from autocompile.export import FORMATS, export, to_paste
from autocompile.report.page import to_html
from autocompile.report.terminal import render, render_trials
from autocompile.store.report import Report

HERE = Path(__file__).parent
RUNS = HERE / "data" / "runs"
REPORTS = {
    f"gpu_{path.stem}": path
    for path in sorted((HERE.parent / "studies" / "first_runs" / "h100").glob("*.json"))
}
"""Reports of which there is no run."""


def names() -> tuple[str, ...]:
    """All runs and reports."""
    return (*sorted(path.stem for path in RUNS.glob("*.tgz")), *REPORTS)


def pack(run: Path) -> None:
    """Keep of a run what a report is made of."""
    with tarfile.open(RUNS / f"{run.name}.tgz", "w:gz") as archive:
        for path in (run / "run.json", *sorted(run.glob("trials/*/result.json"))):
            archive.add(
                path, Path("runs", run.name, path.relative_to(run)), filter=nobodys
            )


def unpack(name: str, folder: Path | str = ".") -> None:
    """Put a run below ``folder/runs``."""
    with tarfile.open(RUNS / f"{name}.tgz") as archive:
        archive.extractall(folder, filter="data")


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the names of this machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def texts(name: str, scratch: Path) -> dict[str, str]:
    """Every form of a run or report, by file name; a run is unpacked below ``scratch/runs``."""
    if name in REPORTS:
        report = read_report(REPORTS[name])
        found = {
            "show.txt": shown(report, name),
            "show_verbose.txt": shown(report, name, True),
        }
        exports = {to: exported(report, to) for to in FORMATS}
    else:
        unpack(name, scratch)
        with inside(scratch):
            report = load(name).report
            found = {
                "show.txt": said("show", name),
                "show_verbose.txt": said("show", name, "-v"),
                "report.json": said("show", name, "--json"),
            }
            exports = {to: said("export", name, "--to", to) for to in FORMATS}
    return {
        **found,
        "terminal.txt": drawn(report),
        **{f"export_{to}.txt": text for to, text in exports.items()},
    }


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Commands are typed in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def said(*arguments: str) -> str:
    """What a command writes to both streams, or its error."""
    result = CliRunner().invoke(app, arguments)
    return result.output + (f"{result.exception}\n" if result.exit_code else "")


def shown(
    report: Report, name: str, verbose: bool = False, file: io.StringIO | None = None
) -> str:
    """What ``show`` writes of a report; to a file that is no terminal, if none is given."""
    with contextlib.redirect_stdout(file or io.StringIO()) as out:
        show_result(report, name, False, verbose)
    return out.getvalue()


def exported(report: Report, to: str) -> str:
    """One export of a report, or its error."""
    try:
        return export(report, to)
    except AutocompileError as error:
        return f"{error}\n"


def drawn(report: Report) -> str:
    """All that a terminal of 80 columns gets, with its colours."""
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard")
    render_trials(report, console)
    render(report, console, code=to_paste(report), use="the line to paste", run="last")
    return out.getvalue()


def page_of(name: str, scratch: Path) -> tuple[str, Report]:
    """``report.html`` of a run or report, with the report; a run is unpacked below ``scratch``."""
    if name in REPORTS:
        report = read_report(REPORTS[name])
        return to_html(report, (), to_paste(report)), report
    unpack(name, scratch)
    with inside(scratch):
        report = load(name).report
        return Path(said("show", name, "--html").strip()).read_text("utf-8"), report


def main() -> None:
    """Pack runs and write the expected texts anew."""
    for run in sys.argv[1:]:
        pack(Path(run))
    for name in names():
        with tempfile.TemporaryDirectory() as scratch:
            found = texts(name, Path(scratch))
        (RUNS / name).mkdir(parents=True, exist_ok=True)
        for file, text in found.items():
            (RUNS / name / file).write_text(text, "utf-8", newline="")
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
