"""The plots of a phase, as lines, dots and words at their places; the page's template draws them.

A plot is left out where there is nothing to see.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autocompile.estimate.candidates import Candidate, candidates
from autocompile.estimate.decision import ZONE
from autocompile.report import text as show
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.store.record import Record

__all__ = ["WIDTH", "Plot", "finalists", "of_phase"]

WIDTH = 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 10, 46
_NAME = 62  # characters of a setting's name over a row
_ROW = 42
_MOST_ROWS = 14
_COLORS = tuple(f"c{i}" for i in range(7))

Scale = Callable[[float], float]


@dataclass
class Plot:
    """A figure of :data:`WIDTH` by ``height``, in pixels, and what stands above it.

    Attributes:
        lines: ends (x, y, x, y), variable of the colour, width.
        dots: centre (x, y), radius, variable of the colour, filled, text under the pointer.
        words: place (x, y), side that is there (start, middle, end), text.
        band: left end and width of a shaded zone.
        legend: variable of the colour, and name.
    """

    title: str
    note: str
    x_title: str
    y_title: str = ""
    height: int = 280
    lines: list[tuple[float, float, float, float, str, float]] = field(default_factory=list)
    dots: list[tuple[float, float, float, str, bool, str]] = field(default_factory=list)
    words: list[tuple[float, float, str, str]] = field(default_factory=list)
    band: tuple[float, float] | None = None
    legend: list[tuple[str, str]] = field(default_factory=list)

    @property
    def bottom(self) -> int:
        """Where the axis is."""
        return self.height - _BOTTOM

    def across(self, values: Sequence[float], left: int, ticks: Sequence[float] = ()) -> Scale:
        """Where a value is from left to right; with ``ticks``, on a logarithmic axis."""
        place = _scale(values, left, WIDTH - _RIGHT, is_log=bool(ticks))
        for tick in ticks or _ticks(values):
            self.lines.append((place(tick), _TOP, place(tick), self.bottom, "grid", 1))
            self.words.append((place(tick), self.bottom + 18, "middle", f"{tick:g}"))
        return place

    def upward(self, values: Sequence[float]) -> Scale:
        """Where a speed-up is from bottom to top; eager's is a line."""
        place = _scale(values, self.bottom, _TOP)
        for tick in _ticks(values):
            self.lines.append((_LEFT, place(tick), WIDTH - _RIGHT, place(tick), "grid", 1))
            self.words.append((_LEFT - 6, place(tick) + 4, "end", f"{tick:g}"))
        self.lines.append((_LEFT, place(1), WIDTH - _RIGHT, place(1), "dim", 1.5))
        return place


def _scale(values: Sequence[float], start: float, end: float, is_log: bool = False) -> Scale:
    read = math.log if is_log else float
    low, high = read(min(values)), read(max(values))
    room = (high - low) * 0.06 or 0.5
    low, high = low - room, high + room
    return lambda value: round(start + (end - start) * (read(value) - low) / (high - low), 1)


def _ticks(values: Sequence[float], most: int = 6) -> list[float]:
    """Round numbers from the least to the largest value."""
    low, high = min(values), max(values)
    if low == high:
        return [low]
    power = 10 ** math.floor(math.log10((high - low) / most))
    step = next(k * power for k in (1, 2, 5, 10, 20) if (high - low) / (k * power) <= most)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def of_phase(name: str, phase: Mapping[str, Any], records: Sequence[Record]) -> list[Plot]:
    """The plots of a phase."""
    mine = [r for r in records if r.phase == name]
    return [*_finalists(phase, mine), *_batch_sizes(phase), *_compile_time(phase)]


def finalists(best: Mapping[str, Any], records: Sequence[Record]) -> list[Candidate]:
    """The settings that were raced at the batch size of the best, or else all, fastest first."""
    here = [r for r in records if r.batch_size == best.get("batch_size")]
    found = [c for c in candidates(here) if not c.record.config.is_baseline]
    raced = [c for c in found if c.sets]
    return sorted(raced or found, key=lambda c: c.speedup.value, reverse=True)


def _finalists(phase: Mapping[str, Any], records: Sequence[Record]) -> Iterator[Plot]:
    """Speed-ups of the finalists with their intervals, and the zone around the best."""
    best = phase.get("best") or {}
    rows = finalists(best, records)[:_MOST_ROWS] if best else []
    if not rows:
        return
    raced = any(row.sets for row in rows)
    size = f", batch size {best['batch_size']}" if best["batch_size"] is not None else ""
    dots = "Small dots are fresh processes. " if raced else "Nothing was confirmed. "
    plot = Plot(
        f"{'Finalists' if raced else 'Fastest of the search, one process each'}{size}",
        f"Speed-up over eager with its 95 % interval. {dots}"
        f"Differences within the shaded zone, {100 * ZONE:.0f} % around the best, are not pursued.",
        "speed-up over eager (eager is 1)",
        height=len(rows) * _ROW + _TOP + _BOTTOM,
    )
    value = best["speedup"]["value"]
    ends = [(max(c.speedup.low, 0), min(c.speedup.high, 3 * c.speedup.value)) for c in rows]
    own = [[math.exp(log) for log in c.logs.values()] for c in rows]
    place = plot.across([1, value, *(v for each in (*ends, *own) for v in each)], 12)
    left, right = place(value / (1 + ZONE)), place(value * (1 + ZONE))
    plot.band = left, round(right - left, 1)
    plot.lines.append((place(1), _TOP, place(1), plot.bottom, "dim", 1.5))
    for i, (row, (low, high), each) in enumerate(zip(rows, ends, own, strict=True)):
        is_best = row.record.number == best["number"]
        color, y = "best" if is_best else "ink", _TOP + i * _ROW
        name = show.label(row.record.config)
        title = f"{show.shorten(name, _NAME)}{' (best)' * is_best}"
        plot.words.append((14, y + 14, "start", title))
        plot.lines.append((place(low), y + 24, place(high), y + 24, color, 2))
        plot.dots += [(place(v), y + 33, 2, "dim", True, "") for v in each]
        tip = f"{name}: {show.estimate(row.speedup)}"
        plot.dots.append((place(row.speedup.value), y + 24, 4.5, color, raced, tip))
    yield plot


def _batch_sizes(phase: Mapping[str, Any]) -> Iterator[Plot]:
    rows = [r for r in phase.get("by_batch_size") or () if r.get("speedup") and r.get("batch_size")]
    if len(rows) < 2:
        return
    sizes = [row["batch_size"] for row in rows]
    default = {
        t["batch_size"]: t["speedup"]["value"]
        for t in _timed(phase)
        if show.label(t["config"]) == DEFAULT_INDUCTOR.label() and t["batch_size"] in sizes
    }
    plot = Plot(
        "Speed-up over batch size",
        "The best setting of each batch size against eager, which is 1.",
        "batch size (logarithmic)",
        "speed-up over eager",
        legend=[("best", "best setting, with its 95 % interval")],
    )
    gains = {row["batch_size"]: row["speedup"] for row in rows}
    x = plot.across(sizes, _LEFT, sizes)
    ends = [gain[end] for gain in gains.values() for end in ("low", "high")]
    y = plot.upward([1, *ends, *default.values()])
    best = {size: gain["value"] for size, gain in gains.items()}
    for color, points in (("c1", default), ("best", best)):
        order = [(x(size), y(points[size])) for size in sorted(points)]
        for one, other in itertools.pairwise(order):
            plot.lines.append((*one, *other, color, 1.5))
        for size, value in points.items():
            tip = f"batch size {size}: {show.speedup(value)}"
            plot.dots.append((x(size), y(value), 4, color, True, tip))
    for size, gain in gains.items():
        plot.lines.append((x(size), y(gain["low"]), x(size), y(gain["high"]), "best", 2))
    if default:
        plot.legend.append(("c1", "plain torch.compile(), one process"))
    yield plot


def _timed(phase: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Trials of the search that were timed themselves."""
    searched = [t for t in phase["trials"] if t.get("role") == "search" and t["outcome"] == "ok"]
    return [t for t in searched if t.get("speedup") and t.get("duplicate_of") is None]


def _compile_time(phase: Mapping[str, Any]) -> Iterator[Plot]:
    """Speed-up against compile time, a colour for each backend."""
    best = phase.get("best") or {}
    size = best.get("batch_size")
    points = [t for t in _timed(phase) if t["batch_size"] == size and (t.get("compile_s") or 0) > 0]
    points = [t for t in points if t["config"].get("backend") != "eager"]
    if len(points) < 2:
        return
    plot = Plot(
        f"Speed-up against compile time{'' if size is None else f', batch size {size}'}",
        "Each mark is a setting, timed in one process with an empty cache. The best is larger.",
        "compile time in seconds (logarithmic)",
        "speed-up over eager",
    )
    times = [t["compile_s"] for t in points]
    marks = (round(m * 10.0**k, 9) for k in range(-6, 6) for m in (1, 1.5, 2, 3, 5, 7))
    x = plot.across(times, _LEFT, [m for m in marks if min(times) <= m <= max(times)] or times[:1])
    y = plot.upward([1, *(t["speedup"]["value"] for t in points)])
    backends = list(dict.fromkeys(str(t["config"].get("backend")) for t in points))
    for t in points:
        gain, place = t["speedup"], backends.index(str(t["config"].get("backend")))
        said = f"{show.label(t['config'])}: {show.speedup(gain)}, {show.seconds(t['compile_s'])}"
        radius = 7 if t["number"] == best.get("number") else 4
        centre = (x(t["compile_s"]), y(gain["value"]))
        color = _COLORS[min(place, len(_COLORS) - 1)]
        plot.dots.append((*centre, radius, color, True, f"trial {t['number']}, {said}"))
    plot.legend = [(color, show.plain(b)) for color, b in zip(_COLORS, backends, strict=False)]
    if len(backends) > len(_COLORS):
        plot.legend[-1] = (_COLORS[-1], "others")
    yield plot
