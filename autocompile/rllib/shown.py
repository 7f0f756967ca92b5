"""How the gain in an algorithm looks in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from autocompile.report import text
from autocompile.report.document import Table
from autocompile.report.terminal import Page

_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps_per_s": ("env steps/s of train()", text.quantity),
    "sampled_per_s": ("env steps/s of sampling", text.quantity),
    "update_s": ("a gradient update", text.seconds),
    "forward_share": ("forward in sampling", lambda share: f"{share * 100:.0f} %"),
}


def render_in_algorithm(found: Mapping[str, Any], console: Console) -> None:
    """One line for each figure: without the settings, with them, and the gain."""
    page, rows = Page(console), []
    for name, row in found["figures"].items():
        label, show = _FIGURES[name]
        sides = [text.read_interval(row[side]) for side in ("untouched", "tuned")]
        cells = [
            f"{show(one.value)} {text.percent(one.half_width)}" for one in sides if one
        ]
        gain = row.get("gain")
        rows.append((label, *cells, text.estimate(gain) if gain else ""))
    page.line(f"target  {text.plain(found['target'])}")
    page.line(f"        {len(found['rounds'])} iterations of each, in turns")
    page.table(
        Table("", ("in the algorithm", "untouched", "tuned", "gain"), tuple(rows)), ""
    )
    for note in found["notes"]:
        page.line(text.plain(note))
