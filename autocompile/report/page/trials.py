"""The table of all trials, which the page's script sorts and filters."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

from autocompile.report import facts as said
from autocompile.report import text as show

__all__ = ["trials_table"]

_TITLES = ("#", "phase", "role", "batch", "outcome", "speed-up", "throughput", "compile", "memory")
_RIGHT = {"#", "batch", "speed-up", "throughput", "compile", "memory"}


def trials_table(report: Mapping[str, Any]) -> Iterator[str]:
    """A section with a row for each trial of the run, in the order of their numbers."""
    trials = [(n, t, p["trials"]) for n, p in report["phases"].items() for t in p["trials"]]
    if not trials:
        return
    yield '<section id="trials"><h2>Trials</h2><p><label>Filter <input type="search" '
    yield f'id="filter" placeholder="inductor ok"></label> <output>{len(trials)}</output> of '
    yield f"{len(trials)}</p>"
    heads = "".join(
        f'<th{_side(title)}><button type="button">{html.escape(title)}</button></th>'
        for title in (*_TITLES, "setting")
    )
    yield f'<div class="scroll"><table class="sortable"><thead><tr>{heads}</tr></thead><tbody>'
    for name, trial, others in sorted(trials, key=lambda item: item[1]["number"]):
        yield _row(name, trial, others)
    yield "</tbody></table></div></section>"


def _side(title: str) -> str:
    return ' class="right"' if title in _RIGHT else ""


def _row(phase: str, trial: Mapping[str, Any], others: list[Mapping[str, Any]]) -> str:
    answered, outcome = trial.get("answered"), trial["outcome"]
    kind = "dim" if answered else "" if outcome == "ok" else "error"
    gain, rate = trial.get("speedup"), trial.get("throughput")
    cells = (
        ("#", trial["number"], str(trial["number"])),
        ("phase", None, phase),
        ("role", None, trial.get("role") or ""),
        ("batch", trial.get("batch_size"), show.or_dash(trial.get("batch_size"))),
        ("outcome", None, "not tried" if answered else outcome),
        ("speed-up", gain and gain["value"], show.ratio(show.read_interval(gain))),
        ("throughput", rate and rate["value"], _rate(rate)),
        ("compile", trial.get("compile_s"), show.seconds(trial.get("compile_s"))),
        ("memory", trial.get("peak_memory_bytes"), show.size(trial.get("peak_memory_bytes"))),
    )
    told = "".join(
        f"<td{_side(title)}{_key(value)}{_class(kind, title)}>{html.escape(show.plain(text))}</td>"
        for title, value, text in cells
    )
    return f"<tr>{told}<td>{_setting(trial, others)}</td></tr>"


def _key(value: float | None) -> str:
    """What numbers are sorted by; a row without one comes last."""
    return "" if value is None else f' data-key="{float(value)!r}"'


def _class(kind: str, title: str) -> str:
    return f' class="{kind}"' if kind and title == "outcome" else ""


def _rate(rate: Mapping[str, Any] | None) -> str:
    return f"{show.quantity(rate['value'])} {rate.get('unit', '')}" if rate else show.NONE


def _setting(trial: Mapping[str, Any], others: list[Mapping[str, Any]]) -> str:
    remarks = ", ".join(said.trial_remarks(trial, others))
    if trial.get("repeats") is not None:
        remarks = f"of trial {trial['repeats']}"
    label = html.escape(show.label(trial["config"]))
    tail = f' <span class="dim">({html.escape(remarks)})</span>' if remarks else ""
    message = show.shorten(show.plain(trial.get("message") or ""), 300)
    why = f'<br><span class="dim">{html.escape(message)}</span>' if message else ""
    return f"<code>{label}</code>{tail}{why}"
