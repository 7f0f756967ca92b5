"""The plots of a phase: what each shows, and how it is drawn; none where there is nothing to see.

All figures are of ``report.json`` and, where it has none, of the records it was made from.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autocompile.estimate.candidates import Candidate, candidates
from autocompile.estimate.decision import ZONE
from autocompile.estimate.intervals import median
from autocompile.report import text as show
from autocompile.report.page.canvas import COLORS, MARKERS, Canvas, Plot
from autocompile.settings.config import DEFAULT_INDUCTOR, CompileConfig
from autocompile.store.record import Record

__all__ = ["finalists", "of_phase", "pairs"]

_NAME = 54  # characters of a setting's name over a row
_ROW_PT = 34.0
_MOST_ROWS = 14
_ONE = {"color": COLORS["dim"], "linewidth": 1, "linestyle": (0, (4, 3))}
_BEHIND = {"facecolor": COLORS["paper"], "alpha": 0.85, "edgecolor": "none", "pad": 1}


def of_phase(
    name: str,
    phase: Mapping[str, Any],
    records: Sequence[Record],
    page: str = "",
    full: bool = True,
) -> Iterator[Plot]:
    """The plots of a phase, or if not ``full``, its finalists and its batch sizes only.

    ``page`` begins the ids in the plots, which are then unique beside another report's.
    """
    mine = [r for r in records if r.phase == name]
    prefix = "".join(c if c.isalnum() else "-" for c in "-".join(filter(None, (page, name))))
    yield from _forest(f"{prefix}-forest", phase, mine)
    yield from _by_batch_size(f"{prefix}-sizes", phase)
    if full:
        yield from _compile_time(f"{prefix}-compile", phase)
        yield from _effects(f"{prefix}-pairs", mine)


def finalists(best: Mapping[str, Any], records: Sequence[Record]) -> list[Candidate]:
    """The settings that were raced at the batch size of the best, or else all, fastest first."""
    here = [r for r in records if r.batch_size == best.get("batch_size")]
    found = [c for c in candidates(here) if not c.record.config.is_baseline]
    raced = [c for c in found if c.sets]
    return sorted(raced or found, key=lambda c: c.speedup.value, reverse=True)


def _forest(prefix: str, phase: Mapping[str, Any], records: Sequence[Record]) -> Iterator[Plot]:
    """Speed-ups of the finalists with their intervals, and the zone around the best."""
    best = phase.get("best")
    rows = finalists(best, records)[:_MOST_ROWS] if best else []
    if not best or not rows:
        return
    raced = any(row.sets for row in rows)
    names = [show.label(row.record.config) for row in rows]
    is_best = [row.record.number == best.get("number") for row in rows]
    titles = [name + " (best)" * mark for name, mark in zip(names, is_best, strict=True)]
    canvas = _rows(prefix, titles, "speed-up over eager (eager is 1)")
    axes, value = canvas.axes, best["speedup"]["value"]
    axes.axvspan(value / (1 + ZONE), value * (1 + ZONE), color=COLORS["band"], linewidth=0)
    for y, row in enumerate(rows):
        color, gain = COLORS["best" if is_best[y] else "ink"], row.speedup
        axes.plot((gain.low, gain.high), (y, y), color=color, linewidth=2)
        own = [math.exp(log) for log in row.logs.values()]
        axes.plot(own, [y + 0.22] * len(own), ".", color=COLORS["dim"], markersize=4)
        filled = color if raced else "none"
        tip = canvas.tooltip(f"{names[y]}: {show.estimate(gain)}")
        axes.plot(gain.value, y, "o", color=color, markerfacecolor=filled, markersize=7, gid=tip)
    size = f", batch size {best['batch_size']}" if best.get("batch_size") is not None else ""
    dots = "Small dots are fresh processes. " if raced else "Nothing was confirmed. "
    yield Plot(
        f"{'Finalists' if raced else 'Fastest of the search, one process each'}{size}",
        f"Speed-up over eager with its 95 % interval. {dots}"
        f"Differences within the shaded zone, {100 * ZONE:.0f} % around the best, are not pursued.",
        canvas.svg("speed-ups of the finalists with their intervals"),
    )


def _rows(prefix: str, titles: Sequence[str], label: str) -> Canvas:
    """Axes with a row for each title, which stands above it, and a line at 1."""
    canvas = Canvas(prefix, len(titles) * _ROW_PT + 50, left=12)
    axes = canvas.axes
    axes.axvline(1, **_ONE)
    for y, title in enumerate(titles):
        place = {"transform": axes.get_yaxis_transform(), "fontsize": 9.5, "bbox": _BEHIND}
        axes.text(0.005, y - 0.32, show.shorten(title, _NAME), **place)
    axes.set_ylim(len(titles) - 0.5, -0.8)
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=6)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(label)
    return canvas


def _by_batch_size(prefix: str, phase: Mapping[str, Any]) -> Iterator[Plot]:
    rows = [r for r in phase.get("by_batch_size") or () if r.get("speedup") and r.get("batch_size")]
    if len(rows) < 2:
        return
    sizes = [row["batch_size"] for row in rows]
    default = {
        t["batch_size"]: t["speedup"]["value"]
        for t in _timed(phase)
        if show.label(t["config"]) == DEFAULT_INDUCTOR.label() and t["batch_size"] in sizes
    }
    canvas = Canvas(prefix, 220)
    axes = canvas.axes
    axes.axhline(1, **_ONE)
    legend = [("best", "●", "best setting, with its 95 % interval")]
    if default:
        axes.plot(*zip(*sorted(default.items()), strict=True), "s-", color=COLORS["c1"], ms=5)
        legend.append(("c1", "■", "plain torch.compile(), one process"))
    gains = [row["speedup"] for row in rows]
    axes.plot(sizes, [g["value"] for g in gains], "-", color=COLORS["best"])
    for size, gain in zip(sizes, gains, strict=True):
        axes.plot((size, size), (gain["low"], gain["high"]), color=COLORS["best"], linewidth=2)
        tip = canvas.tooltip(f"batch size {size}: {show.speedup(gain)}")
        axes.plot(size, gain["value"], "o", color=COLORS["best"], gid=tip)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("batch size (logarithmic)")
    axes.set_ylabel("speed-up over eager")
    yield Plot(
        "Speed-up over batch size",
        "The best setting of each batch size against eager, which is 1.",
        canvas.svg("speed-up of the best setting at each batch size"),
        tuple(legend),
    )


def _timed(phase: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Trials of the search that were timed themselves."""
    searched = [t for t in phase["trials"] if t.get("role") == "search" and t["outcome"] == "ok"]
    return [t for t in searched if t.get("speedup") and t.get("duplicate_of") is None]


def _compile_time(prefix: str, phase: Mapping[str, Any]) -> Iterator[Plot]:
    """Speed-up against compile time, with lines of equal numbers of calls that repay it."""
    best = phase.get("best") or {}
    size = best.get("batch_size")
    timed = [t for t in _timed(phase) if t["batch_size"] == size]
    points = [t for t in timed if t["config"].get("backend") != "eager" and t.get("compile_s")]
    if len(points) < 2:
        return
    canvas = Canvas(prefix, 240)
    axes = canvas.axes
    axes.axhline(1, **_ONE)
    backends = list(dict.fromkeys(str(t["config"].get("backend")) for t in points))
    styles = list(MARKERS)[: len(backends)]
    for t in points:
        place = min(backends.index(str(t["config"].get("backend"))), len(styles) - 1)
        gain, is_best = t["speedup"], t["number"] == best.get("number")
        said = f"{show.label(t['config'])}: {show.speedup(gain)}, {show.seconds(t['compile_s'])}"
        edge = {"markeredgecolor": COLORS["ink"], "markeredgewidth": 1.5} if is_best else {}
        marker = {"color": COLORS[f"c{place}"], "markersize": 9 if is_best else 6, **edge}
        tip = canvas.tooltip(f"trial {t['number']}, {said}")
        axes.plot(t["compile_s"], gain["value"], styles[place], gid=tip, **marker)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.get_major_locator().set_params(subs=(1, 2, 5))
    axes.xaxis.set_major_formatter("{x:g}")
    times = [t["eager_call_s"] for t in timed if t.get("eager_call_s")]
    drawn = _break_even(axes, median(times)) if times else False
    axes.set_xlabel("compile time in seconds (logarithmic)")
    axes.set_ylabel("speed-up over eager")
    names = [*backends[: len(styles) - 1], "others"] if len(backends) > len(styles) else backends
    where = f", batch size {size}" if size is not None else ""
    repaid = " A dotted line: compiling is repaid after so many calls." if drawn else ""
    is_there = any(t["number"] == best.get("number") for t in points)
    ringed = " The best has a ring." if is_there else ""
    marks = enumerate(zip(styles, names, strict=True))
    yield Plot(
        f"Speed-up against compile time{where}",
        f"Each mark is a setting, timed in one process with an empty cache.{ringed}{repaid}",
        canvas.svg("speed-up of each setting against its compile time"),
        tuple((f"c{i}", MARKERS[style], show.plain(name)) for i, (style, name) in marks),
    )


def _break_even(axes: Any, eager_s: float) -> bool:
    """Draw where compiling is repaid after 10, 100, ... calls; whether any line is in sight.

    After ``n`` calls it is if ``compile_s = n * eager_s * (1 - 1 / speedup)``.
    """
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    left, low = left / 1.3, min(low, 0.98)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    axes.locator_params(axis="y", nbins=6)
    if high <= 1.02:
        return False
    gains = [1.001 + (high - 1.001) * i / 60 for i in range(61)]
    lines = {
        n: [(x, g) for g in gains if left < (x := n * eager_s * (1 - 1 / g)) < right]
        for n in (10**k for k in range(1, 12))
    }
    seen = [(n, line) for n, line in lines.items() if len(line) > 5]
    middle = len(seen) // 2
    for n, line in seen[max(0, middle - 1) : middle + 2]:
        axes.plot(*zip(*line, strict=True), ":", color=COLORS["dim"], linewidth=1.2)
        x, y = line[-1]
        side = "bottom" if y < high - 0.06 * (high - low) else "top"
        look = {"color": COLORS["dim"], "fontsize": 8, "ha": "right", "va": side}
        axes.text(x, y, f"{show.thousands(n)} calls ", **look)
    return bool(seen)


def _effects(prefix: str, records: Sequence[Record]) -> Iterator[Plot]:
    """What each value of a dimension changes, by pairs of trials that differ in it alone."""
    found = pairs(records)
    middles = {name: median([ratio for *_, ratio in each]) for name, each in found.items()}
    far = sorted(middles, key=lambda name: -abs(math.log(middles[name])))[:_MOST_ROWS]
    order = sorted((name for name in middles if name in far), key=lambda name: -middles[name])
    if not order:
        return
    titles = [f"{name}: {show.speedup(middles[name])}" for name in order]
    canvas = _rows(prefix, titles, "times as fast as without it")
    axes = canvas.axes
    for y, name in enumerate(order):
        for number, base, ratio in found[name]:
            tip = canvas.tooltip(f"trials {number} and {base}: {show.speedup(ratio)}")
            axes.plot(ratio, y, "o", color=COLORS["c0"], alpha=0.6, ms=5, gid=tip)
        axes.plot((middles[name],) * 2, (y - 0.2, y + 0.2), color=COLORS["ink"], linewidth=2)
    yield Plot(
        "What each dimension brings",
        "A dot is a pair of trials that differ in nothing else, a bar their median. Left of 1: "
        "slower than without it.",
        canvas.svg("how many times as fast a setting is with each value as without it"),
    )


def pairs(records: Sequence[Record]) -> dict[str, list[tuple[int, int, float]]]:
    """Pairs of search trials of one phase by what they differ in: ``mode max-autotune``.

    Of each, the numbers of both trials, and how many times as fast the first is.
    """
    speed = {
        (r.config, r.batch_size): (r.number, r.measurement.speedup.value)
        for r in records
        if r.ok and r.measurement and r.role == "search"
    }
    found: dict[str, list[tuple[int, int, float]]] = {}
    for (config, size), (number, value) in speed.items():
        for name, base in _without_one(config):
            if other := speed.get((base, size)):
                found.setdefault(name, []).append((number, other[0], value / other[1]))
    return found


def _without_one(config: CompileConfig) -> Iterator[tuple[str, CompileConfig]]:
    """What is special about a setting, each with the setting that lacks just that."""
    for dimension, value in config.changed():
        if dimension.name == "backend":
            continue
        base = dataclasses.replace(config, **{dimension.name: dimension.default})
        head = f"{dimension.name.replace('_', ' ')} " if dimension.label is str else ""
        yield show.plain(f"{head}{dimension.label(value)}"), base
    eager = dataclasses.replace(config, backend="eager")
    if not config.is_eager and dataclasses.replace(eager, backend=config.backend) == config:
        yield show.plain(f"backend {config.backend} in place of eager"), eager
