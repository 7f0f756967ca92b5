"""The timeline of a run: what each process was doing, and when.

It is of the records alone; those of older runs do not say when their trials began.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autocompile.report import text as show
from autocompile.report.page.canvas import COLORS, Canvas, Plot
from autocompile.store.record import EXPORTED, Record

__all__ = ["Process", "processes", "timeline"]

_ROLES = {"search": "search", "confirm": "races", EXPORTED: "export"}
_KINDS = {
    "start and end": ("import", "build", "exit"),
    "eager": ("eager",),
    "compile": ("compile",),
    "verify": ("verify",),
    "measure": ("measure",),
}
_IDLE_S = 60.0  # nothing runs for longer only between two sessions of a run
_ROW_PT, _APART = 17.0, 0.5  # height of a row; space between roles, in rows
_WIDTH_PT = 720.0
_LEAST_LABEL = 0.02  # of the width, for a trial's number


@dataclass(frozen=True)
class Process:
    """A process of a run, with times in seconds since the first one began.

    Attributes:
        records: made of it; the sides of a race share one.
        row: among the rows of its role.
        spans: step, begin and end of each stretch of work.
    """

    records: tuple[Record, ...]
    row: int
    spans: tuple[tuple[str, float, float], ...]

    @property
    def role(self) -> str:
        """As in its records."""
        return self.records[0].role

    @property
    def ends(self) -> tuple[float, float]:
        """Its own begin and end."""
        return self.spans[0][1], self.spans[-1][2]


def processes(records: Sequence[Record]) -> tuple[list[Process], list[float]]:
    """The processes in the order of their start, and the times at which a break is left out."""
    sharing: dict[int, list[Record]] = {}
    for r in records:
        if r.spans and r.role in _ROLES:
            sharing.setdefault(r.detail.get("raced_in", r.number), []).append(r)
    found: list[Process] = []
    breaks: list[float] = []
    free_at: dict[str, list[float]] = {}  # of each row, by role
    left_out = latest = min((r.began for r in records if r.began is not None), default=0.0)
    for group in sorted(sharing.values(), key=lambda group: group[0].spans[0][1]):
        spans = group[0].spans
        begin, end = spans[0][1], spans[-1][2]
        if begin - latest > _IDLE_S:
            breaks.append(latest - left_out)
            left_out += begin - latest
        latest = max(latest, end)
        rows = free_at.setdefault(group[0].role, [])
        row = next((i for i, free in enumerate(rows) if free <= begin), len(rows))
        rows[row : row + 1] = [end]
        moved = tuple((step, a - left_out, b - left_out) for step, a, b in spans)
        found.append(Process(tuple(group), row, moved))
    return found, breaks


def timeline(records: Sequence[Record]) -> Iterator[Plot]:
    """Who compiled and who was timed, when; nothing for a run that does not say."""
    found, breaks = processes(records)
    if len(found) < 2:
        return
    canvas, tops = _rows(found)
    for at in breaks:
        canvas.axes.axvline(at, color=COLORS["ink"], linewidth=1, linestyle=(0, (4, 3)))
    spent = dict.fromkeys(_KINDS, 0.0)
    for i, (kind, steps) in enumerate(_KINDS.items()):
        bars = [(tops[p.role] + p.row, a, b) for p in found for s, a, b in p.spans if s in steps]
        if bars:
            look = {"colors": COLORS[f"c{i}"], "linewidth": 0.75 * _ROW_PT, "zorder": 2.5}
            canvas.axes.hlines(*zip(*bars, strict=True), **look)
        spent[kind] = sum(b - a for _, a, b in bars)
    for p in found:
        _mark(canvas, p, tops[p.role] + p.row)
    shares = ", ".join(f"{kind} {show.seconds(s)}" for kind, s in spent.items() if s)
    gone = " A dashed line: the run went on after a break, which is left out." if breaks else ""
    kinds = [(f"c{i}", "■", kind) for i, kind in enumerate(_KINDS) if spent[kind]]
    lost = [] if all(r.ok for p in found for r in p.records) else [("ink", "×", "no result")]
    yield Plot(
        "Timeline",
        "A row holds one process at a time. While one verifies and measures, the others "
        f"wait.{gone} In all: {shares}.",
        canvas.svg("what each process was doing over the time of the run"),
        (*kinds, ("dim", "─", "waits"), *lost),
        is_wide=True,
    )


def _rows(found: Sequence[Process]) -> tuple[Canvas, dict[str, float]]:
    """Axes with rows for each role, and the height of its first row."""
    tops: dict[str, float] = {}
    middles, height = [], 0.0
    for role in _ROLES:
        if rows := {p.row for p in found if p.role == role}:
            tops[role] = height
            middles.append(height + max(rows) / 2)
            height += len(rows) + _APART
    canvas = Canvas("run-timeline", height * _ROW_PT + 46, left=50, width=_WIDTH_PT)
    axes = canvas.axes
    whole_s = max(p.ends[1] for p in found)
    axes.set_xlim(0, whole_s)
    axes.set_ylim(height - _APART - 0.5, -0.5)
    axes.set_yticks(middles, [_ROLES[role] for role in tops])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    unit = "seconds"
    if whole_s > 180:
        unit, step = "minutes", 60 * max(1, round(whole_s / 360))
        ticks = range(0, int(whole_s) + 1, step)
        axes.set_xticks(ticks, [str(at // 60) for at in ticks])
    axes.set_xlabel(f"{unit} since the first trial began")
    return canvas, tops


def _mark(canvas: Canvas, p: Process, y: float) -> None:
    """A process from its begin to its end, with its number where there is room."""
    axes, (begin, end) = canvas.axes, p.ends
    axes.plot((begin, end), (y, y), color=COLORS["dim"], linewidth=1)
    axes.plot((end, end), (y - 0.4, y + 0.4), color=COLORS["paper"], linewidth=1, zorder=2.6)
    _, left, right = max(p.spans, key=lambda span: span[2] - span[1])
    if p.role == "search" and right - left > _LEAST_LABEL * axes.get_xlim()[1]:
        place = {"ha": "center", "va": "center_baseline", "fontsize": 8}
        axes.text((left + right) / 2, y, p.records[0].number, **place, color=COLORS["paper"])
    if not all(r.ok for r in p.records):
        axes.plot(end, y, "x", color=COLORS["ink"], markersize=5, zorder=3, clip_on=False)
    tip = canvas.tooltip(_said(p))
    axes.plot((begin, end), (y, y), color=COLORS["ink"], linewidth=12, alpha=0, gid=tip)


def _said(process: Process) -> str:
    """Of a process, under the pointer."""
    first = process.records[0]
    took = show.seconds(process.ends[1] - process.ends[0])
    if process.role == "search":
        gain = show.speedup(first.measurement.speedup) if first.measurement else ""
        result = gain if first.ok else first.outcome.value
        return f"trial {first.number}, {show.label(first.config)}: {result}, {took}"
    names = ", ".join(show.label(r.config) for r in process.records)
    what = "exported code" if process.role == EXPORTED else f"set {first.race}"
    return f"{show.plain(first.phase)}, {what}: {names}, {took}"
