"""A matplotlib figure as inline SVG, whose colours are variables of the page's style.

matplotlib is imported here and only when a figure is drawn.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

__all__ = ["COLORS", "MARKERS", "Canvas", "Plot", "drawing"]

_SERIES = 7
_NAMES = ("ink", "dim", "grid", "band", "best", "paper", *(f"c{i}" for i in range(_SERIES)))
COLORS = {name: f"#0a0b{i:02x}" for i, name in enumerate(_NAMES)}
"""Colours to draw with: each stands for the variable ``--name``."""
MARKERS = {"o": "●", "^": "▲", "s": "■", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}
"""Of a series, with the character that shows it in a legend."""

_WIDTH_PT = 360.0  # fills a phone, so that text stays readable there
_RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "autocompile",
    "text.parse_math": False,  # a name of the user's may hold a dollar
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "text.color": COLORS["ink"],
    "axes.labelcolor": COLORS["ink"],
    "axes.edgecolor": COLORS["dim"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": COLORS["grid"],
    "grid.linewidth": 0.8,
    "xtick.color": COLORS["dim"],
    "ytick.color": COLORS["dim"],
    "xtick.labelcolor": COLORS["ink"],
    "ytick.labelcolor": COLORS["ink"],
}
_VARIABLES = {color: f"var(--{name})" for name, color in COLORS.items()}
_COLOR = re.compile("|".join(_VARIABLES))
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>| xmlns(?::\w+)?=\"[^\"]*\"|xlink:(?=href)", re.S)
_POINTS_TO = re.compile(r"(^|url\()#")
_NOT_XML = re.compile("[\ufffe\uffff]")


@dataclass(frozen=True)
class Plot:
    """A figure with what stands above it.

    Attributes:
        legend: variable of the colour, symbol and name of each series.
    """

    title: str
    note: str
    svg: str
    legend: tuple[tuple[str, str, str], ...] = ()


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Figures are drawn in the page's style, and characters without a glyph do not warn.

    Raises:
        ImportError: there is no matplotlib.
    """
    import matplotlib

    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")
        yield


class Canvas:
    """One figure with one pair of axes; sizes in points."""

    def __init__(self, name: str, height: float, left: float = 46) -> None:
        from matplotlib.figure import Figure

        self._name = name
        self._titles: dict[str, str] = {}
        width = _WIDTH_PT
        self._figure = Figure(figsize=(width / 72, height / 72))
        bottom, right, top = 38, 12, 8
        sides = ((width - left - right) / width, (height - bottom - top) / height)
        self.axes: Any = self._figure.add_axes((left / width, bottom / height, *sides))

    def tooltip(self, text: str) -> str:
        """An id for an artist, which shows ``text`` under the pointer."""
        gid = f"tip{len(self._titles)}"
        self._titles[gid] = text
        return gid

    def svg(self, label: str) -> str:
        """The figure as an ``svg`` element; ``label`` is read out in its place.

        Ids begin with the figure's name, and colours are CSS variables.
        """
        out = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        self._figure.savefig(out, format="svg", transparent=True, metadata=nothing)
        text = _LEFT_OUT.sub("", _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", out.getvalue()))
        root = ElementTree.fromstring(text)
        for element in root.findall("defs"):  # the style in it is in that of the page
            root.remove(element)
        for element in root.iter():
            gid = element.get("id", "")
            for key, value in element.items():
                value = f"{self._name}-{value}" if key == "id" else value
                value = _COLOR.sub(lambda found: _VARIABLES[found[0]], value)
                element.set(key, _POINTS_TO.sub(rf"\1#{self._name}-", value))
            if gid in self._titles:
                title = ElementTree.Element("title")
                title.text = self._titles[gid]
                element.insert(0, title)
        root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
        return ElementTree.tostring(root, encoding="unicode")
