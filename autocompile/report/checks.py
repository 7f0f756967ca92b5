"""What ``check`` and ``doctor`` show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autocompile.report import text

__all__ = [
    "render_check",
    "render_doctor",
    "render_in_algorithm",
    "render_preview",
    "render_verified",
]


def render_check(found: Mapping[str, Any], console: Console, verbose: bool = False) -> None:
    """One line for each phase: eager runs, compiled is right, and how fast it is."""
    console.print(Text(f"target  {text.target_name(found['target'])}"))
    console.print(Text(f"torch   {text.machine(found['environment'])}"))
    for name, why in found["target"].get("choices", {}).items():
        if verbose:
            console.print(Text(f"        {name}: {text.plain(why)}"))
    for phase, row in found["phases"].items():
        console.print()
        console.print(Text(phase, "bold"))
        console.print(Text("  eager      runs"))
        if row["outcome"] != "ok":
            seen = f"{row['outcome']} in {row['step']}: {text.plain(row['message'])}"
            console.print(Text(f"  compiled   {seen}", "red"))
            if row["where"]:
                console.print(Text(f"             {text.plain(row['where'])}"))
            if verbose and row["log_tail"]:
                for line in row["log_tail"].splitlines():
                    console.print(Text(f"  | {text.plain(line)}"))
            continue
        counts = (row["graphs"], "graph"), (row["graph_breaks"], "graph break")
        graphs = ", ".join(text.many(*count) for count in counts)
        speed = f"{text.speedup(row['speedup'])} {text.interval(row['speedup'])} of eager's speed"
        console.print(Text(f"  compiled   same results as eager · {graphs}"))
        console.print(Text(f"             {speed} · compiles in {text.seconds(row['compile_s'])}"))
        for reason in row["break_reasons"]:
            console.print(Text(f"             graph break: {text.plain(reason)}"))
        for reason in row["skip_reasons"]:
            what = f"Dynamo skipped a function: {text.plain(reason)}"
            console.print(Text(f"             {what}"))
        for note in row["notes"]:
            console.print(Text(f"             {text.plain(note)}"))
    if all(row["outcome"] == "ok" for row in found["phases"].values()):
        console.print()
        console.print(Text(f"Next    autocompile tune {text.plain(found['target']['spec'])}"))


def render_verified(found: Mapping[str, Any], console: Console) -> None:
    """One line for each setting: its gain then and now, and whether it is still the best."""
    console.print(Text(f"torch   {text.machine(found['environment'])}"))
    if found["differences"]:
        console.print(Text(f"measured elsewhere: {'; '.join(found['differences'])}"))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("phase", "batch size", "setting", "then", "now", "verdict"):
        table.add_column(column, overflow="fold")
    for one in found["checks"]:
        size = "" if one["batch_size"] is None else str(one["batch_size"])
        then, now = (text.speedup(one[k]) if one[k] else "" for k in ("was", "speedup"))
        verdict = one["verdict"] + (f": {text.plain(one['message'])}" if one["message"] else "")
        colour = {"fastest": "green", "failed": "red"}.get(one["verdict"], "yellow")
        cells = (one["phase"], size, text.plain(one["setting"]), then, now)
        table.add_row(*cells, Text(verdict, colour))
    console.print(table)
    for line in found["unmet"]:
        console.print(Text(f"gate: {text.plain(line)}", "red"))


_IN_ALGORITHM: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps_per_s": ("env steps/s of train()", text.quantity),
    "sampled_per_s": ("env steps/s of sampling", text.quantity),
    "update_s": ("a gradient update", text.seconds),
    "forward_share": ("forward in sampling", lambda share: f"{share * 100:.0f} %"),
}


def render_in_algorithm(found: Mapping[str, Any], console: Console) -> None:
    """One line for each figure: without the settings, with them, and the gain."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("in the algorithm", "untouched", "tuned", "times faster"):
        table.add_column(column, overflow="fold")
    for name, row in found["figures"].items():
        label, show = _IN_ALGORITHM[name]
        sides = [text.read_interval(row[side]) for side in ("untouched", "tuned")]
        cells = [f"{show(one.value)} {text.percent(one.half_width)}" for one in sides if one]
        gain = row.get("gain")
        last = f"{text.speedup(gain)} {text.interval(gain)}" if gain else ""
        table.add_row(label, *cells, last)
    console.print(Text(f"target  {text.plain(found['target'])}"))
    console.print(Text(f"        {len(found['rounds'])} iterations of each, in turns"))
    console.print(table)
    for note in found["notes"]:
        console.print(Text(text.plain(note)))


def render_doctor(found: Mapping[str, Any], console: Console, verbose: bool = False) -> None:
    """A table of backends: whether each works here; if not, why, and what to do."""
    console.print(Text(text.machine(found["environment"])))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("backend", "modes", "works here", "why / what to do"):
        table.add_column(column, overflow="fold")
    for name, row in found["backends"].items():
        table.add_row(Text(name), _modes(row["modes"]), _works(row), _why(row))
    console.print(table)
    if verbose:
        console.print(Text(f"torch also knows: {', '.join(map(text.plain, found['known']))}"))


def _modes(modes: Mapping[str, Any]) -> Text:
    shown = Text()
    for index, (name, row) in enumerate(modes.items()):
        words = {"ok": name, "same": f"{name} (= {row['message']})"}
        shown.append(", " if index else "")
        shown.append(words.get(row["outcome"], name), "" if row["outcome"] in words else "red")
    return shown if modes else Text("–")


def _works(row: Mapping[str, Any]) -> Text:
    failed = [m for m in row["modes"].values() if m["outcome"] not in ("ok", "same")]
    if row["works"]:
        return Text("partly", "yellow") if failed else Text("yes", "green")
    return Text("no", "red")


def _why(row: Mapping[str, Any]) -> Text:
    parts = [text.plain(row["reason"])] if row["reason"] else []
    if row["works"] and row.get("compile_s") is not None:
        parts.append(f"{text.seconds(row['compile_s'])} for a first compile")
    if row["todo"]:
        parts.append(f"→ {row['todo']}")
    return Text(" ".join(parts))


def render_preview(found: Mapping[str, Any], console: Console) -> None:
    """The settings of each phase, and what is left out and why."""
    console.print(Text(f"target  {text.target_name(found['target'])}"))
    console.print(Text(f"torch   {text.machine(found['environment'])}"))
    for phase, row in found["phases"].items():
        console.print()
        console.print(Text(phase, "bold"))
        for line in _lines(row["settings"]):
            console.print(Text(line), soft_wrap=True)
        for name, why in row["unusable"].items():
            console.print(Text(f"  {name} cannot be used: {text.plain(why)}", "dim"))
        for name, why in row["merged"].items():
            console.print(Text(f"  {name} is the same as {text.plain(why)}", "dim"))
        for why in row["dropped"]:
            console.print(Text(f"  left out: {text.plain(why)}", "dim"))
        console.print(Text(f"  {_of_dynamo(row['dynamo'])}", "dim"))
        settings = f"{len(row['settings'])} settings to try"
        if row["ends_early"]:
            settings += " until the budget is spent"
        about = text.clock(row["predicted_s"])
        console.print(Text(f"  {settings}, about {about}, then the best is confirmed"))


def _of_dynamo(traced: Mapping[str, Any]) -> str:
    """What a trace of the phase says of graphs, and so of ``fullgraph``."""
    if error := traced.get("error"):
        return f"a trace by Dynamo alone failed: {text.plain(error)}"
    graphs, skipped = traced.get("graphs"), traced.get("skipped_frames")
    if not traced.get("graph_breaks"):
        if graphs == 1 and not skipped:
            return "Dynamo makes one graph of it: fullgraph will do"
        return f"Dynamo makes {graphs} graphs of it and skips some code: fullgraph will fail"
    places = [f"{b['place']} ({b['reason']})" for b in traced["breaks"] if b.get("place")][:1]
    count = traced["graph_breaks"]
    often = "once" if count == 1 else f"{count} times"
    where = f", {'at' if count == 1 else 'first at'} {text.plain(places[0])}" if places else ""
    return f"Dynamo breaks the graph {often}{where}: fullgraph will fail"


def _lines(settings: list[Mapping[str, Any]]) -> list[str]:
    """A line for each setting, with the number of settings that are likely the same."""
    sizes: dict[str, list[str]] = {}
    answered: Counter[str] = Counter()
    twins = {s["label"]: s["may_equal"][0] for s in settings if s["may_equal"]}
    for setting in settings:
        label, size = setting["label"], setting["batch_size"]
        if label not in twins:
            sizes.setdefault(label, []).append("" if size is None else str(size))
    for label in twins:
        plainest = label
        while plainest in twins:
            plainest = twins[plainest]
        answered[plainest] += 1
    width = max(map(len, sizes), default=0)
    lines = []
    for label, each in sizes.items():
        batches = f"batch {', '.join(each)}" if any(each) else ""
        more = f"+ {answered[label]} likely the same" if answered[label] else ""
        lines.append(f"  {label:<{width}}  {batches:<16}{more}".rstrip())
    return lines
