"""A matplotlib figure as inline SVG, whose colours are variables of the page's style.

matplotlib is imported here and only when a figure is drawn.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any
from xml.etree import ElementTree

__all__ = ["COLORS", "MARKERS", "Canvas", "drawing"]

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
_POINTS_TO = re.compile(r"(^|url\()#")
_NOT_XML = re.compile("[\ufffe\uffff]")
_NAMESPACE = re.compile(r"^\{[^}]*\}")


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

    def __init__(
        self,
        name: str,
        height: float,
        left: float = 46,
        bottom: float = 38,
        right: float = 12,
        page: float = _WIDTH_PT,
    ) -> None:
        from matplotlib.figure import Figure

        self._name = name
        self._titles: dict[str, str] = {}
        self._figure = Figure(figsize=(page / 72, height / 72))
        width, top = page - left - right, height - bottom - 8
        box = (left / page, bottom / height, width / page, top / height)
        self.axes: Any = self._figure.add_axes(box)

    def scale_by_logarithm(self) -> None:
        """A logarithmic horizontal axis, its ticks at 1, 2 and 5 of each decade."""
        from matplotlib.ticker import FuncFormatter, LogLocator

        self.axes.set_xscale("log")
        self.axes.minorticks_off()
        self.axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        self.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

    def bars(self, places: Iterable[tuple[float, float, float]], name: str) -> None:
        """Horizontal bars (left, right, middle) of three quarters of a row, as one shape."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        corners: list[tuple[float, float]] = []
        for a, b, y in places:
            low, high = y - 0.375, y + 0.375
            corners += [(a, low), (b, low), (b, high), (a, high), (a, low)]
        if corners:
            codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * (len(corners) // 5)
            look = {"facecolor": COLORS[name], "linewidth": 0, "zorder": 2.5}
            self.axes.add_patch(PathPatch(Path(corners, codes), **look))

    def tooltip(self, text: str) -> str:
        """An id for an artist, which shows ``text`` under the pointer."""
        gid = f"tip{len(self._titles)}"
        self._titles[gid] = text
        return gid

    def svg(self, label: str) -> str:
        """The figure as an ``svg`` element; ``label`` is read out in its place."""
        out = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        self._figure.savefig(out, format="svg", transparent=True, metadata=nothing)
        root = ElementTree.fromstring(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", out.getvalue()))
        for element in list(root):
            if _tag(element) in ("metadata", "defs"):  # the style in it is in that of the page
                root.remove(element)
        for element in root.iter():
            self._adapt(element)
        root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
        return ElementTree.tostring(root, encoding="unicode")

    def _adapt(self, element: ElementTree.Element) -> None:
        """Own ids, CSS variables for colours, a title where one is asked for, no namespaces."""
        element.tag = _tag(element)
        old, new = dict(element.attrib), {}
        for key, value in old.items():
            key = _NAMESPACE.sub("", key)
            if key == "id":
                value = f"{self._name}-{value}"
            elif key == "style":
                value = _COLOR.sub(lambda found: _VARIABLES[found[0]], value)
            else:
                value = _POINTS_TO.sub(rf"\1#{self._name}-", value)
            new[key] = value
        element.attrib = new
        if (text := self._titles.get(old.get("id", ""))) is not None:
            title = ElementTree.Element("title")
            title.text = text
            element.insert(0, title)


def _tag(element: ElementTree.Element) -> str:
    return _NAMESPACE.sub("", str(element.tag))
