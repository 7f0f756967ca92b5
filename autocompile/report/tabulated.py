"""From the table over machines to the document that the terminal, Markdown and HTML show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autocompile.report import text as show
from autocompile.report.contents import METHOD, RACED, RULE
from autocompile.report.document import Document, Section, Span, Table, Text
from autocompile.settings.config import EAGER

__all__ = ["shown"]

_MARK = "←"
_LEGEND = (
    " Every speed-up is over eager mode on the same machine, whose throughput stands in its row. An"
    " interval stands where a setting was raced; of one that was not chosen it counts each process,"
    f" slow ones too. {_MARK} is what was chosen there at that batch size; an empty cell was not"
    " tried."
)


def shown(found: Mapping[str, Any]) -> Document:
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
    answer = tuple(row for name, phase in phases.items() for row in _answer(name, phase))
    return Document(
        title=("autocompile: ", Span(show.plain(found["target"].get("spec", "?")), "code")),
        status=f"Not at an end: {', '.join(stopped)}." if stopped else "",
        answer=Table("", ("", "machine", "speed-up", "setting"), answer, right=(2,)),
        sections=tuple(_section(name, phase, list(machines)) for name, phase in phases.items()),
        whole=(),
        method=METHOD + RACED + RULE + _LEGEND,
        circumstances=Table("Machines", ("", "", "run"), about),
        exports={},
    )


def _setting(config: Mapping[str, Any]) -> Text:
    return Span(show.label(config), "code") if config != EAGER.to_dict() else "eager"


def _answer(name: str, phase: Mapping[str, Any]) -> Iterator[tuple[Text, ...]]:
    """A row for each machine, as RLlib's summary has one for each kind of hardware."""
    title: Text = Span(show.plain(name), "strong")
    for machine, answers in phase["answers"].items():
        lead = next((one for one in answers if one["leads"]), None)
        if lead is None:
            yield title, show.plain(machine), Span("no result", "error"), show.NONE
        elif lead["config"] == EAGER.to_dict():
            yield title, show.plain(machine), "keep eager", _setting(lead["config"])
        else:
            gain = Span(_gain(lead), "good")
            yield title, show.plain(machine), gain, _setting(lead["config"])
        title = ""


def _section(name: str, phase: Mapping[str, Any], machines: list[str]) -> Section:
    sizes = dict.fromkeys(row["batch_size"] for row in phase["rows"])
    tables = tuple(_settings(size, phase, machines) for size in sizes)
    about = (show.plain(phase["role"]),) if phase["role"] else ()
    return Section(show.plain(name), about, tuple(_throughputs(phase)), tables)


def _gain(one: Mapping[str, Any]) -> str:
    """With its interval where the setting was raced."""
    gain = one["speedup"]
    is_raced = one["processes"] and gain["low"] < gain["high"]
    return show.estimate(gain) if is_raced else show.speedup(gain)


def _throughputs(phase: Mapping[str, Any]) -> Iterator[Table]:
    """As RLlib's appendix: eager mode and the best beside it, by batch size and machine."""
    every = [(one, name) for name, answers in phase["answers"].items() for one in answers]
    rows = []
    for one, name in sorted(every, key=lambda item: item[0]["batch_size"] or 0):
        unit = show.plain(one["unit"])
        rates = (f"{show.quantity(one[k])} {unit}" for k in ("eager_throughput", "throughput"))
        size, gain = show.or_dash(one["batch_size"]), _gain(one)
        rows.append((size, show.plain(name), *rates, gain, _setting(one["config"])))
    if rows:
        titles = ("batch size", "machine", "eager", "best", "speed-up", "setting")
        yield Table("By batch size", titles, tuple(rows), right=(0, 2, 3, 4))


def _settings(size: int | None, phase: Mapping[str, Any], machines: list[str]) -> Table:
    """Every setting that was tried at one batch size, with a column for each machine."""
    rows = tuple(
        (
            *(_cell(row["machines"].get(name), row["config"]) for name in machines),
            _setting(row["config"]),
        )
        for row in phase["rows"]
        if row["batch_size"] == size
    )
    title = "Every setting" if size is None else f"Every setting at batch size {size}"
    names = tuple(show.plain(name) for name in machines)
    return Table(title, (*names, "setting"), rows, right=range(len(names)))


def _cell(result: Mapping[str, Any] | None, config: Mapping[str, Any]) -> Text:
    if result is None:
        return ""
    gain, rate = result["speedup"], result["throughput"]
    if not gain or not rate:
        return Span(show.plain(result["outcome"]), "error")
    text = _gain(result)
    if config == EAGER.to_dict():
        text = f"{show.quantity(rate['value'])} {show.plain(rate['unit'])}"
    return Span(f"{text} {_MARK}", "good") if result["chosen"] else text
