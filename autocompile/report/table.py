"""One table over runs of one target on several machines, in the form of RLlib's benchmark.

It is made of the reports alone: what a run has decided is shown, nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autocompile.errors import RunError
from autocompile.estimate.candidates import ONE
from autocompile.estimate.intervals import Interval, ratio
from autocompile.report import text as show
from autocompile.report.contents import METHOD, RACED, RULE
from autocompile.report.document import Document, Line, Section, Span, Table, Text
from autocompile.report.markdown import as_markdown
from autocompile.report.page import as_page
from autocompile.settings.config import EAGER
from autocompile.settings.phases import phase_of
from autocompile.store.files import make_folder, write_json, write_text
from autocompile.store.reading import plain
from autocompile.store.report import PhaseResult, Report, Target

SCHEMA = 1
_EAGER = EAGER.to_dict()
_LEGEND = (
    " Every speed-up is over eager mode on the same machine, whose throughput stands in its row; an"
    " interval stands where the setting was raced. Against the first run no change is claimed where"
    " the intervals overlap."
)


@dataclass(frozen=True)
class Answer:
    """What the report of a machine says at a batch size; ``speedup`` is over eager mode there."""

    batch_size: int | None
    leads: bool  # it is what the report is about
    config: Mapping[str, Any]
    eager_throughput: float
    throughput: float
    unit: str
    speedup: Interval
    processes: int  # in how many fresh processes it was raced; 0 if it is of the search


@dataclass(frozen=True)
class Machine:
    """Where a report was made."""

    run_dir: str
    interrupted: bool
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class PhaseTable:
    """A phase on all machines."""

    role: str
    answers: Mapping[str, tuple[Answer, ...]]  # by machine


@dataclass(frozen=True)
class Comparison:
    """What ``table.json`` holds: runs of one target on several machines."""

    schema: int
    target: Target
    machines: Mapping[str, Machine]
    phases: Mapping[str, PhaseTable]


def write_table(folder: Path, runs: Mapping[str, Path]) -> None:
    """Write ``table.json``, ``table.md`` and ``table.html`` of finished runs into a folder.

    ``runs``: of one target; folders, by the name of the machine or accelerator.
    """
    write(folder, table({name: _read(path / "report.json") for name, path in runs.items()}))


def write(folder: Path, found: Comparison) -> None:
    """Write what :func:`table` gave, in all three forms."""
    document = shown(found)
    make_folder(folder)
    write_json(folder / "table.json", plain(found))
    write_text(folder / "table.md", as_markdown(document))
    write_text(folder / "table.html", as_page(document))


def _read(path: Path) -> Report:
    try:
        report = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(
            f"cannot read {path}: {error}",
            "a table is made of the reports of runs that have ended",
            hint=f"autocompile tune TARGET --resume --run-dir {path.parent}",
        ) from None
    return Report.read(report, path)


# --- table.json ---------------------------------------------------------------------------------


def table(reports: Mapping[str, Report]) -> Comparison:
    """The table over reports of one target, by the name of their machine."""
    machines = {
        name: Machine(report.run_dir, report.interrupted or report.running, report.environment)
        for name, report in reports.items()
    }
    answers: dict[str, dict[str, tuple[Answer, ...]]] = {}
    for name, report in reports.items():
        for phase, own in report.phases.items():
            answers.setdefault(phase, {})[name] = tuple(_answers(own))
    phases = {name: PhaseTable(phase_of(name).role, each) for name, each in answers.items()}
    return Comparison(SCHEMA, next(iter(reports.values())).target, machines, phases)


def _answers(phase: PhaseResult) -> Iterator[Answer]:
    """The best of each batch size beside eager mode; the one that the report is about leads."""
    if (best := phase.best) is None:
        return
    for row in phase.sizes:
        yield Answer(
            batch_size=row.batch_size,
            leads=row.batch_size == best.batch_size,
            config=phase.config_of(row.number) if row.is_faster else _EAGER,
            eager_throughput=row.eager_throughput,
            throughput=row.best_throughput if row.is_faster else row.eager_throughput,
            unit=best.throughput.unit,
            speedup=row.speedup if row.is_faster else ONE,
            processes=row.confirmed_processes,
        )


# --- its document -------------------------------------------------------------------------------


def shown(found: Comparison) -> Document:
    """The table as a document."""
    machines, phases = found.machines, found.phases
    stopped = [show.plain(name) for name, one in machines.items() if one.interrupted]
    about = tuple(
        (show.plain(name), show.machine(one.environment), Span(show.plain(one.run_dir), "code"))
        for name, one in machines.items()
    )
    answer = tuple(row for name, phase in phases.items() for row in _lead(name, phase))
    return Document(
        title=("autocompile: ", Span(show.plain(found.target.spec), "code")),
        status=f"Not at an end: {', '.join(stopped)}." if stopped else "",
        answer=Table("", ("", "machine", "speed-up", "setting"), answer, right=(2,)),
        sections=tuple(_section(name, phase) for name, phase in phases.items()),
        whole=tuple(_differences(machines)),
        method=METHOD + RACED + RULE + _LEGEND,
        circumstances=Table("Machines", ("", "", "run"), about),
    )


def _setting(config: Mapping[str, Any]) -> Text:
    return Span(show.label(config), "code") if config != _EAGER else "eager"


def _lead(name: str, phase: PhaseTable) -> Iterator[tuple[Text, ...]]:
    """A row for each machine, as RLlib's summary has one for each kind of hardware."""
    title: Text = Span(show.plain(name), "strong")
    for machine, answers in phase.answers.items():
        lead = next((one for one in answers if one.leads), None)
        cells: tuple[Text, Text] = (Span("no result", "error"), show.NONE)
        if lead is not None:
            gain = "keep eager" if lead.config == _EAGER else Span(_gain(lead), "good")
            cells = gain, _setting(lead.config)
        yield title, show.plain(machine), *cells
        title = ""


def _gain(one: Answer) -> str:
    """With its interval where the setting was raced."""
    is_raced = one.processes and one.speedup.low < one.speedup.high
    return show.estimate(one.speedup) if is_raced else show.speedup(one.speedup)


def _section(name: str, phase: PhaseTable) -> Section:
    """As RLlib's appendix: eager mode and the best beside it, by batch size and machine."""
    every = [(one, name) for name, answers in phase.answers.items() for one in answers]
    first, rows = next(iter(phase.answers.values())), []
    base = {one.batch_size: one for one in first}
    for one, machine in sorted(every, key=lambda item: item[0].batch_size or 0):
        rates = (
            f"{show.quantity(rate)} {one.unit}" for rate in (one.eager_throughput, one.throughput)
        )
        size, gain = show.or_dash(one.batch_size), _gain(one)
        change = _change(one, base.get(one.batch_size))
        rows.append((size, show.plain(machine), *rates, gain, change, _setting(one.config)))
    titles = ("batch size", "machine", "eager", "best", "speed-up", "against first", "setting")
    best = (Table("By batch size", titles, tuple(rows), right=range(2, 6)),) if rows else ()
    about = (phase.role,) if phase.role else ()
    return Section(show.plain(name), about, best, ())


def _change(one: Answer, base: Answer | None) -> str:
    """The speed-up over that of the first run, where their intervals do not overlap."""
    if base is None or one is base:
        return ""
    now, then = one.speedup, base.speedup
    is_same = now.low <= then.high and then.low <= now.high
    return "no clear change" if is_same else show.estimate(ratio(now, then))


def _differences(machines: Mapping[str, Machine]) -> Iterator[Line]:
    """What is not the same on all machines."""
    environments = [one.environment for one in machines.values()]
    for what in dict.fromkeys(key for environment in environments for key in environment):
        values = [show.plain(environment.get(what, show.NONE)) for environment in environments]
        if len(set(values)) > 1 and not what.startswith("busy_"):  # of the moment
            yield Line("Differs", (f"{show.plain(what)}: {' → '.join(values)}",))
