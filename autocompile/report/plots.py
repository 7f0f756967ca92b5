"""The plots of a phase, as lines, dots and words at their places; the page's template draws them.

A plot is left out where there is nothing to see.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from autocompile.estimate.candidates import Candidate, candidates
from autocompile.estimate.decision import ZONE
from autocompile.estimate.intervals import Interval
from autocompile.report import text as show
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.store.record import Record
from autocompile.store.report import Answer, PhaseResult, Trial

WIDTH = 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 10, 46
_NAME = 62  # characters of a setting's name over a row
_ROW = 42
_MOST_ROWS = 14
_COLORS = tuple(f"c{i}" for i in range(7))

Scale = Callable[[float], float]
_Line = tuple[float, float, float, float, str, float]
_Dot = tuple[float, float, float, str, bool, str]
_Word = tuple[float, float, str, str]


@dataclass
class Plot:
    """A figure of :data:`WIDTH` by ``height``, in pixels, and what stands above it."""

    title: str
    note: str
    x_title: str
    y_title: str = ""
    height: int = 280
    # Ends (x, y, x, y), variable of the colour, width.
    lines: list[_Line] = field(default_factory=list)
    # Centre (x, y), radius, variable of the colour, filled, text under the pointer.
    dots: list[_Dot] = field(default_factory=list)
    # Place (x, y), side that is there (start, middle, end), text.
    words: list[_Word] = field(default_factory=list)
    # Left end and width of a shaded zone.
    band: tuple[float, float] | None = None
    # Variable of the colour, and name.
    legend: list[tuple[str, str]] = field(default_factory=list)

    @property
    def bottom(self) -> int:
        """Where the axis is."""
        return self.height - _BOTTOM

    def across(
        self, values: Sequence[float], left: int, ticks: Sequence[float] = ()
    ) -> Scale:
        """Where a value is from left to right; with ``ticks``, on a logarithmic axis."""
        place = _scale(values, left, WIDTH - _RIGHT, is_log=bool(ticks))
        for tick in ticks or _ticks(values):
            x = place(tick)
            self.lines.append((x, _TOP, x, self.bottom, "grid", 1))
            self.words.append((x, self.bottom + 18, "middle", f"{tick:g}"))
        return place

    def upward(self, values: Sequence[float]) -> Scale:
        """Where a speed-up is from bottom to top; eager's is a line."""
        place = _scale(values, self.bottom, _TOP)
        right = WIDTH - _RIGHT
        for tick in _ticks(values):
            y = place(tick)
            self.lines.append((_LEFT, y, right, y, "grid", 1))
            self.words.append((_LEFT - 6, y + 4, "end", f"{tick:g}"))
        eager = place(1)
        self.lines.append((_LEFT, eager, right, eager, "dim", 1.5))
        return place


def _scale(
    values: Sequence[float], start: float, end: float, is_log: bool = False
) -> Scale:
    read = math.log if is_log else float
    low, high = read(min(values)), read(max(values))
    # Room for dots at the ends; all values may be one.
    room = (high - low) * 0.06 or 0.5
    low, high = low - room, high + room

    def place(value: float) -> float:
        # A tenth of a pixel is enough, and keeps the page small.
        return round(start + (end - start) * (read(value) - low) / (high - low), 1)

    return place


def _ticks(values: Sequence[float], most: int = 6) -> list[float]:
    """Round numbers from the least to the largest value."""
    low, high = min(values), max(values)
    if low == high:
        return [low]
    power = 10 ** math.floor(math.log10((high - low) / most))
    steps = [k * power for k in (1, 2, 5, 10, 20)]
    step = next(step for step in steps if (high - low) / step <= most)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [i * step for i in range(first, last + 1)]


def _logarithmic_ticks(values: Sequence[float]) -> list[float]:
    """Round numbers from the least to the largest value, several to each power of ten."""
    # Rounded, since 7 * 0.1 is not 0.7.
    powers = [10.0**k for k in range(-6, 6)]
    marks = [round(m * power, 9) for power in powers for m in (1, 1.5, 2, 3, 5, 7)]
    between = [mark for mark in marks if min(values) <= mark <= max(values)]
    # Values that are close together may have no mark between them.
    return between or [values[0]]


def of_phase(name: str, phase: PhaseResult, records: Sequence[Record]) -> list[Plot]:
    """The plots of a phase."""
    mine = [r for r in records if r.phase == name]
    return [*_finalists(phase, mine), *_batch_sizes(phase), *_compile_time(phase)]


def raced_at(size: int | None, records: Sequence[Record]) -> list[Candidate]:
    """The settings that were raced at a batch size, or else all, fastest first."""
    here = [r for r in records if r.batch_size == size]
    found = [c for c in candidates(here) if not c.record.config.is_baseline]
    raced = [c for c in found if c.sets]
    return sorted(raced or found, key=lambda c: c.speedup.value, reverse=True)


def _finalists(phase: PhaseResult, records: Sequence[Record]) -> Iterator[Plot]:
    """Speed-ups of the finalists with their intervals, and the zone around the best."""
    best, at = phase.answer.best, phase.answer.batch_size
    if not best:
        return
    rows = raced_at(at, records)[:_MOST_ROWS]
    if not rows:
        return
    raced = any(row.sets for row in rows)
    what = "The race" if raced else "Fastest of the search, one process each"
    dots = "Small dots are fresh processes. " if raced else "Nothing was confirmed. "
    plot = Plot(
        f"{what}{_at_size(phase.answer)}",
        f"Speed-up over eager with its interval. {dots}"
        f"Differences within the shaded zone, {100 * ZONE:.0f} % around the best, are not pursued.",
        "speed-up over eager (eager is 1)",
        height=len(rows) * _ROW + _TOP + _BOTTOM,
    )
    value = best.speedup.value
    shown = [1.0, value]
    for row in rows:
        shown += [*_ends(row), *_of_processes(row)]
    place = plot.across(shown, 12)
    left, right = place(value / (1 + ZONE)), place(value * (1 + ZONE))
    plot.band = left, round(right - left, 1)
    eager = place(1)
    plot.lines.append((eager, _TOP, eager, plot.bottom, "dim", 1.5))
    for number, row in enumerate(rows):
        is_best = row.record.number == best.number
        _draw_row(plot, place, _TOP + number * _ROW, row, is_best, raced)
    yield plot


def _at_size(answer: Answer) -> str:
    """The end of a title."""
    return f", {answer.size}" if answer.size else ""


def _ends(row: Candidate) -> tuple[float, float]:
    """The ends of an interval; one that is very wide would leave no room for the others."""
    found = row.speedup
    return max(found.low, 0), min(found.high, 3 * found.value)


def _of_processes(row: Candidate) -> list[float]:
    """The speed-up in each fresh process."""
    return [math.exp(log) for log in row.logs.values()]


def _draw_row(
    plot: Plot, place: Scale, top: float, row: Candidate, is_best: bool, raced: bool
) -> None:
    """A finalist: its name, below that its interval, and below that its processes."""
    color = "best" if is_best else "ink"
    name = show.label(row.record.config)
    title = show.shorten(name, _NAME)
    if is_best:
        title += " (best)"
    plot.words.append((14, top + 14, "start", title))
    low, high = _ends(row)
    plot.lines.append((place(low), top + 24, place(high), top + 24, color, 2))
    for value in _of_processes(row):
        plot.dots.append((place(value), top + 33, 2, "dim", True, ""))
    tip = f"{name}: {show.estimate(row.speedup)}"
    plot.dots.append((place(row.speedup.value), top + 24, 4.5, color, raced, tip))


def _batch_sizes(phase: PhaseResult) -> Iterator[Plot]:
    """Speed-ups of the best setting and of plain torch.compile() over the batch size."""
    gains: dict[int, Interval] = {}
    for answer in phase.answers:
        gain = _gain_of(answer)
        if answer.batch_size and gain:
            gains[answer.batch_size] = gain
    if len(gains) < 2:
        return
    default = {
        t.batch_size: gain.value
        for t, gain in _timed(phase)
        if t.config == DEFAULT_INDUCTOR and t.batch_size in gains
    }
    plot = Plot(
        "Speed-up over batch size",
        "The best setting of each batch size against eager, which is 1.",
        "batch size (logarithmic)",
        "speed-up over eager",
        legend=[("best", "best setting, with its interval")],
    )
    sizes = list(gains)
    x = plot.across(sizes, _LEFT, sizes)
    ends = [end for gain in gains.values() for end in (gain.low, gain.high)]
    y = plot.upward([1, *ends, *default.values()])
    best = {size: gain.value for size, gain in gains.items()}
    for color, points in (("c1", default), ("best", best)):
        order = [(x(size), y(points[size])) for size in sorted(points)]
        for one, other in itertools.pairwise(order):
            plot.lines.append((*one, *other, color, 1.5))
        for size, value in points.items():
            tip = f"batch size {size}: {show.speedup(value)}"
            plot.dots.append((x(size), y(value), 4, color, True, tip))
    for size, gain in gains.items():
        centre = x(size)
        plot.lines.append((centre, y(gain.low), centre, y(gain.high), "best", 2))
    if default:
        plot.legend.append(("c1", "plain torch.compile(), one process"))
    yield plot


def _gain_of(answer: Answer) -> Interval | None:
    """The speed-up of a batch size; of the next best setting where eager is kept."""
    if answer.next:
        return answer.next.speedup
    return answer.gain if answer.changes_something else None


def _timed(phase: PhaseResult) -> list[tuple[Trial, Interval]]:
    """Trials of the search that were timed themselves, with their speed-ups."""
    return [
        (t, t.speedup)
        for t in phase.searched
        if t.ok and t.speedup and t.duplicate_of is None
    ]


def _compile_time(phase: PhaseResult) -> Iterator[Plot]:
    """Speed-up against compile time, a colour for each backend."""
    best, size = phase.answer.best, phase.answer.batch_size
    here = [(t, gain) for t, gain in _timed(phase) if t.batch_size == size]
    # The axis is logarithmic: what compiles nothing has no place on it.
    points = [
        (t, gain, t.compile_s)
        for t, gain in here
        if t.compile_s and t.compile_s > 0 and not t.config.is_eager
    ]
    if len(points) < 2:
        return
    plot = Plot(
        f"Speed-up against compile time{_at_size(phase.answer)}",
        "Each mark is a setting, timed in one process with an empty cache. The best is larger.",
        "compile time in seconds (logarithmic)",
        "speed-up over eager",
    )
    times = [seconds for _, _, seconds in points]
    x = plot.across(times, _LEFT, _logarithmic_ticks(times))
    y = plot.upward([1, *(gain.value for _, gain, _ in points)])
    backends = list(dict.fromkeys(t.config.backend for t, _, _ in points))
    last = len(_COLORS) - 1
    # Backends beyond the colours share the last one.
    colors = {name: _COLORS[min(n, last)] for n, name in enumerate(backends)}
    for t, gain, seconds in points:
        said = f"{show.label(t.config)}: {show.speedup(gain)}, {show.seconds(seconds)}"
        radius = 7 if best and t.number == best.number else 4
        x_y = x(seconds), y(gain.value)
        color = colors[t.config.backend]
        plot.dots.append((*x_y, radius, color, True, f"trial {t.number}, {said}"))
    named = zip(_COLORS, backends, strict=False)
    plot.legend = [(color, show.plain(name)) for color, name in named]
    if len(backends) > len(_COLORS):
        plot.legend[-1] = (_COLORS[-1], "others")
    yield plot
