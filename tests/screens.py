"""Recorded answers as they look on a terminal and in a pipe, for README.md and docs/report.md.

python tests/screens.py            # writes docs/screens/*.svg anew
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from unittest import mock

from recorded_runs import shown
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from autocompile.commands.listing import read_report

ROOT = Path(__file__).parent.parent
SCREENS = ROOT / "docs" / "screens"
RUNS = ROOT / "studies" / "first_runs" / "two_cores"
RUN, FIRST = RUNS / "ppo_breakout.json", RUNS / "mobilenet.json"
PICTURES = [
    ("answer", RUN, 80),
    ("answer", RUN, 100),
    ("answer", RUN, 120),
    ("first", FIRST, 100),
]

# Rich's own format loads a font from a server and has the colours of one theme.
_FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {terminal_height:.0f}">
<style>
.paper {{ fill: PAPER }}
.a-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }}
{styles}
</style>
<rect class="paper" width="{width}" height="{terminal_height:.0f}" rx="8"/>
<g class="a-matrix" transform="translate({terminal_x}, 0)">{backgrounds}{matrix}</g>
</svg>
"""
_STYLE = re.compile(r"(?<=<style>\n).*?(?=</style>)", re.S)
_NOTHING = re.compile(r' clip-path="[^"]*"|<text [^>]*>\s*</text>')


def answer(run: Path, width: int) -> str:
    """The answer of a run at so many columns, as one picture for light and dark."""
    light, dark = (
        _svg(run, width, DEFAULT_TERMINAL_THEME, "#fff"),
        _svg(run, width, SVG_EXPORT_THEME, "#111"),
    )
    (style,) = _STYLE.findall(dark)
    assert _STYLE.sub("", light) == _STYLE.sub("", dark)
    at_night = f"@media (prefers-color-scheme: dark) {{\n{style}}}\n</style>"
    return light.replace("</style>", at_night)


def _svg(run: Path, width: int, theme: TerminalTheme, paper: str) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print()
    for line in Text.from_ansi(typed(run, width)).split(allow_blank=True):
        for part in line.divide(
            range(width, len(line), width)
        ):  # as a terminal breaks it
            console.print(part, highlight=False)
    template = _FORMAT.replace("PAPER", paper)
    drawn = console.export_svg(theme=theme, code_format=template, unique_id="a")
    return _NOTHING.sub("", drawn).replace("</text>", "</text>\n")


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def typed(run: Path, width: int) -> str:
    """What ``autocompile show last`` writes to a terminal, colours included."""
    with mock.patch.dict(
        os.environ, {"TERM": "xterm", "COLUMNS": str(width), "LINES": "50"}
    ):
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            os.environ.pop(name, None)
        return shown(read_report(run), "last", file=_Terminal())


def piped() -> str:
    """The answer in a pipe."""
    return shown(read_report(RUN), "last")


def main() -> None:
    """Write the pictures."""
    SCREENS.mkdir(exist_ok=True)
    for name, run, width in PICTURES:
        (SCREENS / f"{name}-{width}.svg").write_text(answer(run, width), "utf-8")


if __name__ == "__main__":
    main()
