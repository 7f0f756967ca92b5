"""``report.html``: one file that needs nothing from elsewhere.

``page.html.j2`` escapes every text. The page's policy allows no script, so that a name that got
through would still not run.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template

from autocompile.report import text as show
from autocompile.report.contents import document
from autocompile.report.document import Document, Line, spans
from autocompile.report.plots import WIDTH, of_phase
from autocompile.store.record import Record
from autocompile.store.report import Report


def to_html(
    report: Report,
    records: Sequence[Record] = (),
    code: Mapping[str, str] | None = None,
) -> str:
    """A report as ``report.html`` holds it; ``code``: what to paste, by phase.

    Without the records of all phases the plot of finalists is left out.
    """
    return _template().render(
        shown=document(report, code=code),
        about=(show.target_name(vars(report.target)), show.machine(report.environment)),
        plots=[of_phase(name, phase, records) for name, phase in report.phases.items()],
    )


def as_page(shown: Document) -> str:
    """A document as a page of its tables."""
    none: list[tuple[()]] = [()] * len(shown.sections)
    return _template().render(shown=shown, about=(), plots=none)


@functools.cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["spans"] = spans
    environment.tests["line"] = lambda block: isinstance(block, Line)
    environment.globals |= {"width": WIDTH}
    source = resources.files(__package__).joinpath("page.html.j2").read_text("utf-8")
    return environment.from_string(source)


def _printable(value: object) -> object:
    """Text of a run without control characters; what is escaped already stays."""
    return show.printable(value) if type(value) is str else value
