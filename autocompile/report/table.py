"""One table over runs of one target on several machines, in the form of RLlib's benchmark.

It is made of the reports alone: what a run has decided is shown, nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autocompile.errors import RunError, UsageError
from autocompile.estimate.intervals import Interval, ratio
from autocompile.report import text as show
from autocompile.report.contents import METHOD, RACED, RULE
from autocompile.report.document import Document, Line, Section, Span, Table, Text
from autocompile.report.markdown import as_markdown
from autocompile.report.page import as_page
from autocompile.settings.config import EAGER
from autocompile.settings.phases import phase_of
from autocompile.settings.tuned import is_faster
from autocompile.store.files import make_folder, write_json, write_text
from autocompile.store.reading import demand_schema
from autocompile.store.record import SCHEMA as REPORT_SCHEMA

__all__ = ["SCHEMA", "shown", "table", "write", "write_table"]

SCHEMA = 1
_EAGER = EAGER.to_dict()
_EVEN = {"value": 1.0, "low": 1.0, "high": 1.0}
_LEGEND = (
    " Every speed-up is over eager mode on the same machine, whose throughput stands in its row; an"
    " interval stands where the setting was raced. Against the first run no change is claimed where"
    " the intervals overlap."
)

Report = Mapping[str, Any]


def write_table(folder: Path, runs: Mapping[str, Path]) -> None:
    """Write ``table.json``, ``table.md`` and ``table.html`` of finished runs into a folder.

    ``runs``: of one target; folders, by the name of the machine or accelerator.
    """
    write(folder, table({name: _read(path / "report.json") for name, path in runs.items()}))


def write(folder: Path, found: Report) -> None:
    """Write what :func:`table` gave, in all three forms."""
    document = shown(found)
    make_folder(folder)
    write_json(folder / "table.json", found)
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
    demand_schema(path, report, REPORT_SCHEMA)
    return dict(report)


# --- table.json ---------------------------------------------------------------------------------


def table(reports: Mapping[str, Report]) -> dict[str, Any]:
    """The content of ``table.json``; ``reports``: of one target, by the name of their machine.

    ``machines``: where each was measured. By phase ``answers``: what each machine's report says at
    each batch size. ``speedup`` is over eager mode there; ``processes`` is in how many fresh
    processes it was raced, and where that is 0 it is of the search.
    """
    first = next(iter(reports.values()))
    phases: dict[str, dict[str, list[Report]]] = {}
    for name, report in reports.items():
        try:
            for phase, own in report["phases"].items():
                phases.setdefault(phase, {})[name] = list(_answers(own))
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"{name} is damaged, or was written by another version: {error} is missing or "
                "wrong",
                hint="autocompile show --schema   (prints what a report holds)",
            ) from None
    return {
        "schema": SCHEMA,
        "target": first["target"],
        "machines": {
            name: {
                "run_dir": report.get("run_dir", ""),
                "interrupted": bool(report.get("interrupted") or report.get("running")),
                "environment": report["environment"],
            }
            for name, report in reports.items()
        },
        "phases": {
            phase: {"role": phase_of(phase).role, "answers": answers}
            for phase, answers in phases.items()
        },
    }


def _answers(phase: Report) -> Iterator[dict[str, Any]]:
    """The best of each batch size beside eager mode; the one that the report is about leads."""
    best, configs = phase["best"], {t["number"]: t["config"] for t in phase["trials"]}
    rows = list(phase["by_batch_size"]) if best else []
    if best and best["batch_size"] not in [row["batch_size"] for row in rows]:
        # Nothing but eager mode worked.
        rate = best["throughput"]["value"]
        rows.append({**best, "eager_throughput": rate, "best_throughput": rate, "faster": False})
    for row in rows:
        chosen = is_faster(row)
        yield {
            "batch_size": row["batch_size"],
            "leads": row["batch_size"] == best["batch_size"],
            "config": configs[row["number"]] if chosen else _EAGER,
            "eager_throughput": row["eager_throughput"],
            "throughput": row["best_throughput"] if chosen else row["eager_throughput"],
            "unit": best["throughput"]["unit"],
            "speedup": row["speedup"] if chosen else _EVEN,
            "processes": row.get("confirmed_processes") or 0,
        }


# --- its document -------------------------------------------------------------------------------


def shown(found: Report) -> Document:
    """What ``table.json`` holds as a document."""
    machines, phases = found["machines"], found["phases"]
    stopped = [show.plain(name) for name, one in machines.items() if one["interrupted"]]
    about = tuple(
        (
            show.plain(name),
            show.machine(one["environment"]),
            Span(show.plain(one["run_dir"]), "code"),
        )
        for name, one in machines.items()
    )
    answer = tuple(row for name, phase in phases.items() for row in _lead(name, phase))
    return Document(
        title=("autocompile: ", Span(show.plain(found["target"].get("spec", "?")), "code")),
        status=f"Not at an end: {', '.join(stopped)}." if stopped else "",
        answer=Table("", ("", "machine", "speed-up", "setting"), answer, right=(2,)),
        sections=tuple(_section(name, phase) for name, phase in phases.items()),
        whole=tuple(_differences(machines)),
        method=METHOD + RACED + RULE + _LEGEND,
        circumstances=Table("Machines", ("", "", "run"), about),
    )


def _setting(config: Report) -> Text:
    return Span(show.label(config), "code") if config != _EAGER else "eager"


def _lead(name: str, phase: Report) -> Iterator[tuple[Text, ...]]:
    """A row for each machine, as RLlib's summary has one for each kind of hardware."""
    title: Text = Span(show.plain(name), "strong")
    for machine, answers in phase["answers"].items():
        lead = next((one for one in answers if one["leads"]), None)
        cells: tuple[Text, Text] = (Span("no result", "error"), show.NONE)
        if lead is not None:
            gain = "keep eager" if lead["config"] == _EAGER else Span(_gain(lead), "good")
            cells = gain, _setting(lead["config"])
        yield title, show.plain(machine), *cells
        title = ""


def _gain(one: Report) -> str:
    """With its interval where the setting was raced."""
    gain = one["speedup"]
    is_raced = one["processes"] and gain["low"] < gain["high"]
    return show.estimate(gain) if is_raced else show.speedup(gain)


def _section(name: str, phase: Report) -> Section:
    """As RLlib's appendix: eager mode and the best beside it, by batch size and machine."""
    every = [(one, name) for name, answers in phase["answers"].items() for one in answers]
    first, rows = next(iter(phase["answers"].values())), []
    base = {one["batch_size"]: one for one in first}
    for one, machine in sorted(every, key=lambda item: item[0]["batch_size"] or 0):
        unit = show.plain(one["unit"])
        rates = (f"{show.quantity(one[k])} {unit}" for k in ("eager_throughput", "throughput"))
        size, gain = show.or_dash(one["batch_size"]), _gain(one)
        change = _change(one, base.get(one["batch_size"]))
        rows.append((size, show.plain(machine), *rates, gain, change, _setting(one["config"])))
    titles = ("batch size", "machine", "eager", "best", "speed-up", "against first", "setting")
    best = (Table("By batch size", titles, tuple(rows), right=range(2, 6)),) if rows else ()
    about = (show.plain(phase["role"]),) if phase["role"] else ()
    return Section(show.plain(name), about, best, ())


def _change(one: Report, base: Report | None) -> str:
    """The speed-up over that of the first run, where their intervals do not overlap."""
    if base is None or one is base:
        return ""
    now, then = Interval(**one["speedup"]), Interval(**base["speedup"])
    is_same = now.low <= then.high and then.low <= now.high
    return "no clear change" if is_same else show.estimate(ratio(now, then))


def _differences(machines: Report) -> Iterator[Line]:
    """What is not the same on all machines."""
    environments = [one["environment"] for one in machines.values()]
    for what in dict.fromkeys(key for environment in environments for key in environment):
        values = [show.plain(environment.get(what, show.NONE)) for environment in environments]
        if len(set(values)) > 1 and not what.startswith("busy_"):  # of the moment
            yield Line("Differs", (f"{show.plain(what)}: {' → '.join(values)}",))
