"""What ``list`` and ``compare`` show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autocompile.report import text

__all__ = ["render_comparison", "render_runs"]

_ANSWERS = {"keep_eager": "keep eager", "failed": "no result", None: "no report yet"}


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def render_runs(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """One line for each phase of each run."""
    if not rows:
        console.print(Text("no runs yet\nNext    autocompile tune model.py"))
        return
    table = _table("run", "when", "target", "phase", "result")
    for row in rows:
        date, _, clock = row["when"].partition("T")
        head = [row["name"], f"{date} {clock[:5]}", text.plain(row["target"] or text.NONE)]
        answers = [(text.plain(name), _answer(phase)) for name, phase in row["phases"].items()]
        if row["state"] != "done":
            why = f": {text.plain(row['message'])}" if row["message"] else ""
            answers.append((row["state"] + why, Text("")))
        for name, answer in answers:
            table.add_row(*map(Text, head), Text(name), answer)
            head = ["", "", ""]
    console.print(table)


def _answer(phase: Mapping[str, Any]) -> Text:
    if phase["verdict"] != "faster":
        return Text(_ANSWERS.get(phase["verdict"], text.plain(phase["verdict"])), "dim")
    size = phase["batch_size"]
    at = "" if size is None else f" at batch size {size}"
    return Text(f"{text.speedup(phase['speedup'])} {text.interval(phase['speedup'])}{at}", "green")


def render_comparison(found: Mapping[str, Any], console: Console) -> None:
    """The two runs, what differs around them, and a table for each phase."""
    for key in "ab":
        side = found[key]
        told = f"{text.plain(side['name'])}   {text.machine(side['environment'])}"
        console.print(Text(f"{key.upper()}        {told}"))
    for number, row in enumerate(found["differences"]):
        told = f"{row['what']} {text.plain(row['a'])} → {text.plain(row['b'])}"
        console.print(Text(f"{'' if number else 'differs':<9}{told}"))
    for phase, rows in found["phases"].items():
        console.print()
        console.print(Text(phase, "bold"))
        table = _table("  batch size", "A", "B", "B against A", "setting")
        for row in rows:
            size = text.NONE if row["batch_size"] is None else str(row["batch_size"])
            cells = (_side(row["a"]), _side(row["b"]), _change(row), Text(_setting(row)))
            table.add_row(Text(f"  {size}"), *cells)
        console.print(table)
    for key in "ab":
        if alone := found["only_in"][key]:
            console.print(Text(f"only in {key.upper()}: {', '.join(map(text.plain, alone))}"))
    console.print()
    console.print(
        Text("Speed-ups are over the eager mode of the same run, with 95 % intervals.", "dim")
    )


def _side(side: Mapping[str, Any] | None) -> Text:
    if side is None:
        return Text(text.NONE)
    rate = "" if side["throughput"] is None else f"\n{text.quantity(side['throughput'])}/s"
    return Text(f"{text.speedup(side['speedup'])} {text.interval(side['speedup'])}{rate}")


def _change(row: Mapping[str, Any]) -> Text:
    if row["change"] is None:
        return Text("in one only", "dim")
    if row["overlap"]:
        return Text("no clear change: the intervals overlap", "dim")
    told = f"{text.speedup(row['change'])} {text.interval(row['change'])}"
    return Text(told, "green" if row["change"]["value"] > 1 else "red")


def _setting(row: Mapping[str, Any]) -> str:
    names = [text.plain(side["setting"]) for side in (row["a"], row["b"]) if side]
    return " → ".join(dict.fromkeys(names))
