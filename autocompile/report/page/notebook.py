"""The answer of a report with its plots, as a notebook shows it beside text of its own theme."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from autocompile.report.contents import document
from autocompile.report.page.canvas import drawing
from autocompile.report.page.figures import Plot, of_answer
from autocompile.report.page.markup import as_figure, as_table, escaped
from autocompile.store.record import Record

__all__ = ["to_notebook"]


def to_notebook(
    report: Mapping[str, Any], records: Sequence[Record] = (), code: Mapping[str, str] | None = None
) -> str:
    """An HTML fragment without scripts: the answer, the finalists, the speed-up over batch size.

    Args:
        report: the content of ``report.json``.
        records: of all phases; without them there are no finalists.
        code: of each phase in one line; without it, the name of the setting stands there.
    """
    shown = document(report, full=False, code=code)
    style = resources.files(__package__).joinpath("notebook.css").read_text("utf-8")
    status = f"<p><b>{escaped(shown.status)}</b></p>" if shown.status else ""
    figures = "".join(map(as_figure, _plots(report, records)))
    return (
        f'<div class="autocompile"><style>{style}</style>{status}{as_table(shown.answer)}'
        f'<div class="figures">{figures}</div></div>'
    )


def _plots(report: Mapping[str, Any], records: Sequence[Record]) -> list[Plot]:
    """Those of each phase; none without matplotlib."""
    try:
        with drawing():
            return list(_drawn(report, records))
    except ImportError:
        return []


def _drawn(report: Mapping[str, Any], records: Sequence[Record]) -> Iterator[Plot]:
    page = Path(str(report.get("run_dir", ""))).name  # a notebook may show several runs
    for name, phase in report["phases"].items():
        for plot in of_answer(name, phase, records, page):
            yield plot if len(report["phases"]) == 1 else plot.of(name)
