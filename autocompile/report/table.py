"""One table over runs of one target on several machines.

It is made of the reports alone: what a run has decided is shown, nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from autocompile.estimate.intervals import Interval, ratio
from autocompile.report import text as show
from autocompile.report.contents import METHOD, RACED, RULE
from autocompile.report.document import Document, Line, Section, Span, Table, Text
from autocompile.report.page import as_page
from autocompile.settings.phases import phase_of
from autocompile.store.files import make_folder, write_text
from autocompile.store.report import Answer, Best, PhaseResult, Report

Phases = Mapping[str, PhaseResult]
"""The results of one phase, by the names of the machines."""

_LEGEND = (
    " Every speed-up is over eager mode on the same machine, whose throughput stands in its row; an"
    " interval stands where the setting was raced. Against the first run no change is claimed where"
    " the intervals overlap."
)


def write_table(folder: Path, reports: Mapping[str, Report]) -> Path:
    """Write ``table.html`` of reports of one target, by the names of their machines."""
    make_folder(folder)
    path = folder / "table.html"
    write_text(path, as_page(table(reports)))
    return path


def table(reports: Mapping[str, Report]) -> Document:
    """The reports of one target, by the names of their machines, as one document."""
    stopped = [
        show.plain(n) for n, one in reports.items() if one.interrupted or one.running
    ]
    about = tuple(
        (
            show.plain(name),
            show.machine(one.environment),
            Span(show.plain(one.run_dir), "code"),
        )
        for name, one in reports.items()
    )
    names = dict.fromkeys(
        phase for report in reports.values() for phase in report.phases
    )
    phases = {
        name: {
            k: report.phases[name]
            for k, report in reports.items()
            if name in report.phases
        }
        for name in names
    }
    answer = tuple(
        row for name, machines in phases.items() for row in _answers(name, machines)
    )
    spec = next(iter(reports.values())).target.spec
    return Document(
        title=("autocompile: ", Span(show.plain(spec), "code")),
        status=f"Not at an end: {', '.join(stopped)}." if stopped else "",
        answer=Table("", ("", "machine", "speed-up", "setting"), answer, right=(2,)),
        sections=tuple(_section(name, machines) for name, machines in phases.items()),
        whole=tuple(_differences(reports)),
        method=METHOD + RACED + RULE + _LEGEND,
        circumstances=Table("Machines", ("", "", "run"), about),
    )


def _setting(answer: Answer, best: Best) -> Text:
    if not answer.changes_something:
        return "eager"
    return Span(show.label(best.config), "code")


def _gain(answer: Answer, best: Best) -> str:
    """With its interval where the setting was raced."""
    is_raced = answer.changes_something and best.confirmed_processes
    return show.estimate(best.speedup) if is_raced else show.speedup(best.speedup)


def _answers(name: str, machines: Phases) -> Iterator[tuple[Text, ...]]:
    """A row for each machine."""
    title: Text = Span(show.plain(name), "strong")
    for machine, phase in machines.items():
        answer, cells = phase.answer, _no_result(phase.answer)
        if best := answer.best:
            gain: Text = "keep eager"
            if answer.changes_something:
                gain = Span(_gain(answer, best), "good" if answer.is_faster else "")
            cells = gain, _setting(answer, best)
        yield title, show.plain(machine), *cells
        title = ""


def _no_result(answer: Answer) -> tuple[Text, Text]:
    if answer.verdict == "unknown":
        return "no result yet", show.NONE
    return Span("no result", "error"), show.NONE


def _section(name: str, machines: Phases) -> Section:
    """Eager mode and the best beside it, by batch size and machine."""
    first, *_ = machines
    every = [
        (answer, answer.best, machine)
        for machine, phase in machines.items()
        for answer in phase.answers
        if answer.best
    ]
    base = {
        answer.batch_size: best.speedup
        for answer, best, machine in every
        if machine == first
    }
    rows = []
    for answer, best, machine in sorted(
        every, key=lambda each: each[0].batch_size or 0
    ):
        rates = (
            f"{show.quantity(rate.value)} {rate.unit}"
            for rate in (best.eager_throughput, best.throughput)
        )
        then = base.get(answer.batch_size) if machine != first else None
        rows.append(
            (
                show.or_dash(answer.batch_size),
                show.plain(machine),
                *rates,
                _gain(answer, best),
                _change(best.speedup, then) if then else "",
                _setting(answer, best),
            )
        )
    titles = (
        "batch size",
        "machine",
        "eager",
        "best",
        "speed-up",
        "against first",
        "setting",
    )
    tables: tuple[Table, ...] = ()
    if rows:
        tables = (Table("By batch size", titles, tuple(rows), right=range(2, 6)),)
    role = phase_of(name).role
    return Section(show.plain(name), (role,) if role else (), tables, ())


def _change(now: Interval, then: Interval) -> str:
    """The speed-up over that of the first run, where their intervals do not overlap."""
    is_same = now.low <= then.high and then.low <= now.high
    return "no clear change" if is_same else show.estimate(ratio(now, then))


def _differences(reports: Mapping[str, Report]) -> Iterator[Line]:
    """What is not the same on all machines."""
    environments = [report.environment for report in reports.values()]
    for what in dict.fromkeys(
        key for environment in environments for key in environment
    ):
        values = [
            show.plain(environment.get(what, show.NONE)) for environment in environments
        ]
        if len(set(values)) > 1 and not what.startswith("busy_"):  # of the moment
            yield Line("Differs", (f"{show.plain(what)}: {' → '.join(values)}",))
