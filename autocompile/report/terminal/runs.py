"""What ``list`` and ``compare`` show: lines of columns, which a pipe and ``grep`` find whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from autocompile.report import text

__all__ = ["render_comparison", "render_runs"]

_ANSWERS = {"keep_eager": "keep eager", "failed": "no result", None: "no report yet"}


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(Text(text.encodable(line.rstrip(), console.encoding), style), soft_wrap=True)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of as many cells each as lines, every column as wide as its widest cell."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(c + " " * (w - cell_len(c)) for c, w in zip(row, widths, strict=True))
        for row in rows
    ]


def render_runs(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A line for each run, and below it one for each of its phases."""
    if not rows:
        _print(console, "no runs yet")
        _print(console, "Next    autocompile tune model.py")
    heads = _columns([(r["name"], *_when(r), text.plain(r["target"] or "")) for r in rows])
    phases = _columns([(text.plain(n), _answer(p)) for r in rows for n, p in r["phases"].items()])
    for row, head in zip(rows, heads, strict=True):
        why = f": {text.plain(row['message'])}" if row["message"] else ""
        state = "" if row["state"] == "done" else f"   {row['state']}{why}"
        _print(console, head.rstrip() + state, "bold")
        for _ in row["phases"]:
            _print(console, f"  {phases.pop(0)}")


def _when(row: Mapping[str, Any]) -> tuple[str, str]:
    date, _, clock = row["when"].partition("T")
    return date, clock[:5]


def _answer(phase: Mapping[str, Any]) -> str:
    if phase["verdict"] != "faster":
        return _ANSWERS.get(phase["verdict"], text.plain(phase["verdict"]))
    size = phase["batch_size"]
    at = "" if size is None else f" at batch size {size}"
    return f"{text.speedup(phase['speedup'])} {text.interval(phase['speedup'])}{at}"


def render_comparison(found: Mapping[str, Any], console: Console) -> None:
    """The two runs, what differs around them, and a table for each phase."""
    names = _columns([(key.upper(), text.plain(found[key]["name"])) for key in "ab"])
    for key, name in zip("ab", names, strict=True):
        _print(console, f"{name}   {text.machine(found[key]['environment'])}")
    for row in found["differences"]:
        told = f"{text.plain(row['a'])} → {text.plain(row['b'])}"
        _print(console, f"differs: {row['what']} {told}")
    rows = [row for phase in found["phases"].values() for row in phase]
    head = ("  batch size", "A", "B", "B against A")
    lines = _columns([head, *(line for row in rows for line in _lines(row))])
    for phase, own in found["phases"].items():
        _print(console, "")
        _print(console, text.plain(phase), "bold")
        _print(console, lines[0], "dim")
        for _ in own:
            _print(console, lines.pop(1))
            _print(console, lines.pop(1), "dim")
    for key in "ab":
        if alone := found["only_in"][key]:
            _print(console, f"only in {key.upper()}: {', '.join(map(text.plain, alone))}")
    _print(console, "")
    _print(console, "Speed-ups are over the eager mode of the same run, with 95 % intervals;")
    _print(console, "where the intervals overlap there is no clear change.")


def _lines(row: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
    """Speed-ups and their change; below them what gets done in a second, and the settings."""
    sides = (row["a"], row["b"])
    size = text.NONE if row["batch_size"] is None else str(row["batch_size"])
    if row["change"] is None:
        change = "in one only"
    elif row["overlap"]:
        change = "no clear change"
    else:
        change = _figure(row["change"])
    settings = dict.fromkeys(text.plain(side["setting"]) for side in sides if side)
    rates = (f"{text.quantity(s['throughput'])}/s" if s else "" for s in sides)
    speedups = (_figure(side["speedup"]) if side else text.NONE for side in sides)
    return (f"{size:>12}", *speedups, change), ("", *rates, " → ".join(settings))


def _figure(speedup: Mapping[str, Any]) -> str:
    return f"{text.speedup(speedup)} {text.interval(speedup)}"
