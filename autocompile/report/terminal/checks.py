"""What ``check``, ``doctor``, ``verify`` and ``tune --dry-run`` show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console

from autocompile.report import text
from autocompile.report.document import Span, Table, Text
from autocompile.report.facts import checks
from autocompile.report.terminal.page import Page

__all__ = [
    "render_check",
    "render_doctor",
    "render_in_algorithm",
    "render_preview",
    "render_verified",
]


def _begin(found: Mapping[str, Any], console: Console) -> Page:
    page = Page(console)
    if isinstance(found.get("target"), Mapping):
        page.line(f"target  {text.target_name(found['target'])}")
    page.line(f"torch   {text.machine(found['environment'])}")
    return page


def render_check(found: Mapping[str, Any], console: Console, verbose: bool = False) -> None:
    """One line for each phase: eager runs, compiled is right, and how fast it is."""
    page = _begin(found, console)
    for name, why in (found["target"].get("choices") or {}).items() if verbose else ():
        page.line(f"        {text.plain(name)}: {text.plain(why)}")
    for phase, row in found["phases"].items():
        page.line()
        page.line(phase, "bold")
        page.line("  eager      runs")
        if row["outcome"] == "ok":
            label = "  compiled   "
            for line in _works_compiled(row):
                page.line(f"{label}{text.plain(line)}")
                label = " " * len(label)
            continue
        seen = f"{row['outcome']} in {row['step']}: {text.plain(row['message'])}"
        page.line(f"  compiled   {seen}", "red")
        if row["where"]:
            page.line(f"             {text.plain(row['where'])}")
        for line in (row["log_tail"] or "").splitlines() if verbose else ():
            page.line(f"  | {text.plain(line)}")
    if all(row["outcome"] == "ok" for row in found["phases"].values()):
        page.line()
        page.line(f"Next    autocompile tune {text.plain(found['target']['spec'])}")


def _works_compiled(row: Mapping[str, Any]) -> Iterator[str]:
    counts = (row["graphs"], "graph"), (row["graph_breaks"], "graph break")
    yield f"same results as eager · {', '.join(text.many(*count) for count in counts)}"
    speed = f"{text.speedup(row['speedup'])} {text.interval(row['speedup'])} of eager's speed"
    yield f"{speed} · compiles in {text.seconds(row['compile_s'])}"
    yield from (f"graph break: {reason}" for reason in row["break_reasons"])
    yield from (f"Dynamo skipped a function: {reason}" for reason in row["skip_reasons"])
    yield from row["notes"]


def render_verified(found: Mapping[str, Any], console: Console) -> None:
    """One line for each setting: its gain then and now, and whether it is still the best."""
    page = _begin(found, console)
    if found["differences"]:
        page.line(f"measured elsewhere: {'; '.join(found['differences'])}")
    page.table(checks(found), "")
    for line in found["unmet"]:
        page.line(f"gate: {text.plain(line)}", "red")


_IN_ALGORITHM: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps_per_s": ("env steps/s of train()", text.quantity),
    "sampled_per_s": ("env steps/s of sampling", text.quantity),
    "update_s": ("a gradient update", text.seconds),
    "forward_share": ("forward in sampling", lambda share: f"{share * 100:.0f} %"),
}


def render_in_algorithm(found: Mapping[str, Any], console: Console) -> None:
    """One line for each figure: without the settings, with them, and the gain."""
    page, rows = Page(console), []
    for name, row in found["figures"].items():
        label, show = _IN_ALGORITHM[name]
        sides = [text.read_interval(row[side]) for side in ("untouched", "tuned")]
        cells = [f"{show(one.value)} {text.percent(one.half_width)}" for one in sides if one]
        gain = row.get("gain")
        rows.append((label, *cells, f"{text.speedup(gain)} {text.interval(gain)}" if gain else ""))
    page.line(f"target  {text.plain(found['target'])}")
    page.line(f"        {len(found['rounds'])} iterations of each, in turns")
    page.table(Table("", ("in the algorithm", "untouched", "tuned", "gain"), tuple(rows)), "")
    for note in found["notes"]:
        page.line(text.plain(note))


def render_doctor(found: Mapping[str, Any], console: Console, verbose: bool = False) -> None:
    """A table of backends: whether each works here; if not, why, and what to do."""
    page = Page(console)
    page.line(text.machine(found["environment"]))
    titles = ("backend", "modes", "works here", "why / what to do")
    rows = tuple(
        (text.plain(name), _modes(row["modes"]), _works(row), _why(row))
        for name, row in found["backends"].items()
    )
    page.table(Table("", titles, rows), "")
    if verbose:
        page.line(f"torch also knows: {', '.join(map(text.plain, found['known']))}")


def _modes(modes: Mapping[str, Any]) -> Text:
    shown: list[Span | str] = []
    for name, row in modes.items():
        same = f" (= {row['message']})" if row["outcome"] == "same" else ""
        shown += [", "] * bool(shown)
        shown.append(Span(name + same, "" if row["outcome"] in ("ok", "same") else "error"))
    return tuple(shown) or text.NONE


def _works(row: Mapping[str, Any]) -> Text:
    failed = [m for m in row["modes"].values() if m["outcome"] not in ("ok", "same")]
    if row["works"]:
        return Span("partly", "warning") if failed else Span("yes", "good")
    return Span("no", "error")


def _why(row: Mapping[str, Any]) -> str:
    parts = [text.plain(row["reason"])] if row["reason"] else []
    if row["works"] and row.get("compile_s") is not None:
        parts.append(f"{text.seconds(row['compile_s'])} for a first compile")
    return " ".join([*parts, f"→ {row['todo']}"] if row["todo"] else parts)


def render_preview(found: Mapping[str, Any], console: Console) -> None:
    """The settings of each phase, and what is left out and why."""
    page = _begin(found, console)
    for phase, row in found["phases"].items():
        page.line()
        page.line(phase, "bold")
        for line in _lines(row["settings"]):
            page.line(line)
        aside = [f"{name} cannot be used: {why}" for name, why in row["unusable"].items()]
        aside += [f"{name} is the same as {why}" for name, why in row["merged"].items()]
        aside += [f"left out: {why}" for why in row["dropped"]]
        for line in (*aside, _of_dynamo(row["dynamo"])):
            page.line(f"  {text.plain(line)}", "dim")
        until = " until the budget is spent" if row["ends_early"] else ""
        about = f"about {text.clock(row['predicted_s'])}, then the best is confirmed"
        page.line(f"  {len(row['settings'])} settings to try{until}, {about}")


def _of_dynamo(traced: Mapping[str, Any]) -> str:
    """What a trace of the phase says of graphs, and so of ``fullgraph``."""
    if error := traced.get("error"):
        return f"a trace by Dynamo alone failed: {error}"
    graphs, count = traced.get("graphs"), traced.get("graph_breaks")
    if not count:
        if graphs == 1 and not traced.get("skipped_frames"):
            return "Dynamo makes one graph of it: fullgraph will do"
        return f"Dynamo makes {graphs} graphs of it and skips some code: fullgraph will fail"
    places = [f"{b['place']} ({b['reason']})" for b in traced["breaks"] if b.get("place")][:1]
    often = "once" if count == 1 else f"{count} times"
    where = f", {'at' if count == 1 else 'first at'} {places[0]}" if places else ""
    return f"Dynamo breaks the graph {often}{where}: fullgraph will fail"


def _lines(settings: list[Mapping[str, Any]]) -> list[str]:
    """A line for each setting, with the number of settings that are likely the same."""
    sizes: dict[str, list[str]] = {}
    answered: Counter[str] = Counter()
    twins = {s["label"]: s["may_equal"][0] for s in settings if s["may_equal"]}
    for setting in settings:
        if setting["label"] not in twins:
            size = setting["batch_size"]
            sizes.setdefault(setting["label"], []).append("" if size is None else str(size))
    for label in twins:
        while label in twins:
            label = twins[label]
        answered[label] += 1
    width = max(map(len, sizes), default=0)
    lines = []
    for label, each in sizes.items():
        batches = f"batch {', '.join(each)}" if any(each) else ""
        more = f"+ {answered[label]} likely the same" if answered[label] else ""
        lines.append(f"  {label:<{width}}  {batches:<16}{more}".rstrip())
    return lines
