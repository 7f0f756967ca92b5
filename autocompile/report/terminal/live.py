"""The live board on a terminal, and which progress a run has."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from autocompile.errors import UsageError
from autocompile.progress import Countdown, Progress
from autocompile.report import text as show
from autocompile.report.terminal.lines import (
    Json,
    PlainProgress,
    cell_name,
)
from autocompile.settings.config import CompileConfig
from autocompile.settings.setting import Setting
from autocompile.store.record import Outcome, Record, Step

__all__ = ["LiveProgress", "PlainProgress", "progress"]

_LINES = 16
_SHOWN = 2  # running trials, each by itself
_ORDER = list(Step)
_DOING = {
    Step.IMPORT: "starting",
    Step.BUILD: "building",
    Step.EAGER: "running eager",
    Step.COMPILE: "compiling",
    # Nothing is drawn while a trial measures, so this line has to hold until it is over.
    Step.VERIFY: "verifying, then measuring",
    Step.MEASURE: "measuring",
    Step.EXIT: "finishing",
}


@dataclass(frozen=True)
class _Running:
    config: CompileConfig
    cell: str
    step: Step = Step.IMPORT
    since: float = 0.0


class LiveProgress(Progress):
    """A board of at most 16 lines that is redrawn in place.

    It is drawn on events and ticks only, and never while a trial measures: drawing takes a core
    for some milliseconds, which on a CPU would fall into somebody's timing window.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)
        self._machine = self._target = self._run = self._race = ""
        self._spaces: Mapping[str, str] = {}
        self._budget: Countdown | None = None
        self._running: dict[int, _Running] = {}
        self._warnings: list[str] = []
        self._closed = False
        self._left = self._done = 0
        self._counts: Counter[str] = Counter()
        self._worked: list[Record] = []
        self._race_steps: dict[int, Step] = {}

    def header(self, target: Json, environment: Json, run_dir: str) -> None:
        self._machine = show.machine(environment)
        self._target, self._run = show.target_name(target), show.plain(run_dir)
        self.tick()

    def searching(self, spaces: Mapping[str, str], budget: Countdown) -> None:
        self._spaces, self._budget = spaces, budget
        self.tick()

    def started(self, number: int, setting: Setting, role: str) -> None:
        self._race, self._race_steps = "", {}
        cell = cell_name(setting.phase, setting.batch_size)
        self._running[number] = _Running(setting.config, cell, since=self._clock())
        self.tick()

    def step(self, number: int, step: Step) -> None:
        if (running := self._running.get(number)) is not None:
            if running.step is Step.MEASURE and step is Step.VERIFY:
                step = Step.EXIT  # verified once more after the timing: no measurement follows
            self._running[number] = replace(running, step=step, since=self._clock())
        elif self._race:
            self._race_steps[number] = step
        self.tick()

    def ended(self, record: Record, left: int) -> None:
        self._running.pop(record.number, None)
        self._race_steps.pop(record.number, None)
        if record.role == "search":
            self._done, self._left = self._done + 1, left
            same = record.duplicate_of is not None
            self._counts["same" if same else record.outcome.value] += 1
            self._worked += [record] if record.ok and not same else []
        self.tick()

    def racing(self, phase: str, batch_size: int | None, sides: int, number: int) -> None:
        many = show.many(sides, "setting")
        self._race_steps = {}
        self._race = f"race of {cell_name(phase, batch_size)}, set {number}: {many} beside eager"
        self.tick()

    def warning(self, text: str) -> None:
        self._warnings.append(show.plain(text))
        self.tick()

    def tick(self) -> None:
        steps = [running.step for running in self._running.values()]
        if Step.MEASURE not in (*steps, *self._race_steps.values()):
            self._draw(self._board)

    def close(self) -> None:
        spent = show.clock(self._budget.spent_s) if self._budget else "0:00"
        told = Text(f"{self._done} tried in {spent} · {self._kinds()}".rstrip(" ·"))
        self._draw(lambda _: [*self._head(), told])
        self._closed = True
        self._live.stop()

    def _draw(self, lines_in: Callable[[int], list[Text]]) -> None:
        if self._closed:
            return
        self._live.start()
        while self._warnings:
            self._console.print(Text(f"warning: {self._warnings.pop(0)}", "red"), soft_wrap=True)
        height = min(_LINES, max(self._console.height - 1, 1))
        lines = lines_in(height)[:height]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        self._live.update(Group(*lines), refresh=True)

    def _kinds(self) -> str:
        kinds = sorted(self._counts.items(), key=lambda k: (k[0] != Outcome.OK.value, -k[1]))
        return " · ".join(f"{count} {kind}" for kind, count in kinds)

    def _head(self) -> list[Text]:
        target = Text.assemble(("target  ", "dim"), self._target)
        return [Text(self._machine, "bold"), target, Text.assemble(("run     ", "dim"), self._run)]

    def _board(self, height: int) -> list[Text]:
        if not self._machine:
            return [Text("looking at the machine, torch and the target ...", "dim")]
        lines = self._head()
        lines[-1].append("          Ctrl-C stops and reports · --resume continues", "dim")
        if self._budget:
            spaces = [
                Text.assemble(("space   " if not i else " " * 8, "dim"), show.plain(f"{k} · {v}"))
                for i, (k, v) in enumerate(self._spaces.items())
            ]
            lines[-1:] = [*spaces, lines[-1], Text(), self._bar(self._budget)]
        lines.append(self._now())
        return lines + _leaderboard(self._worked, height - len(lines))

    def _bar(self, budget: Countdown) -> Text:
        """How much of the time is over, or of the list where there is no end of time."""
        total_s, spent_s = budget.total_s, budget.spent_s
        if total_s is None:
            share = self._done / max(1, self._done + self._left)
            time_ = f"{self._done}/{self._done + self._left} · {show.clock(spent_s)}"
        else:
            share = min(1.0, spent_s / total_s)
            time_ = f"{show.clock(spent_s)} · {show.clock(max(0.0, total_s - spent_s))} left"
        end = f"  {time_}   {self._done} tried · {self._kinds()}".rstrip(" ·")
        width = max(min(self._console.width - len(end) - 1, 28), 8)
        full = round(width * share)
        return Text.assemble(" ", ("━" * full, "green"), ("─" * (width - full), "dim"), end)

    def _now(self) -> Text:
        if self._race and not self._running:
            return Text.assemble((" now   ", "dim"), self._race)
        told = []
        for number, r in self._running.items():
            lasts = round(self._clock() - r.since) if r.step is not Step.VERIFY else 0
            doing = _DOING[r.step] + (f" {lasts} s" if lasts else "")
            told.append(f"#{number} {r.cell} · {show.label(r.config)} · {doing}")
        if len(told) > _SHOWN:  # the one that has come farthest, and how many are beside it
            farthest = max(self._running, key=lambda n: _ORDER.index(self._running[n].step))
            first = told[list(self._running).index(farthest)]
            told = [first, f"and {len(told) - 1} beside it"]
        return Text.assemble((" now   ", "dim"), "      ".join(told) or show.NONE)


def _leaderboard(worked: Sequence[Record], height: int) -> list[Text]:
    """The best so far of each phase and batch size in ``height`` lines, then who follows them."""
    if not worked or height < 2:
        return []
    speedups = {r.number: r.measurement.speedup for r in worked if r.measurement}
    ranked = sorted(worked, key=lambda r: -speedups[r.number].value)
    first: dict[tuple[str, int | None], Record] = {}
    for r in ranked:
        first.setdefault((r.phase, r.batch_size), r)
    order = [first[cell] for cell in sorted(first, key=str)]
    order += [r for r in ranked if r not in order and not r.config.is_plain_eager]
    width = max(len(r.phase) for r in order)
    titles = f"{'#':>4}  {'phase':<{width}}  {'batch':>5}  {'per second':>14}   "
    lines = [Text(f"{titles}against eager    compile   setting", "dim")]
    for r in order[: height - 1]:
        assert r.measurement is not None
        speedup, is_eager = speedups[r.number], r.config.is_plain_eager
        rate = show.measured(speedup.scaled((r.batch_size or 1) / r.measurement.eager_call_s))
        line = f"{r.number:>4}  {r.phase:<{width}}  {show.or_dash(r.batch_size):>5}  {rate:>14}   "
        line += f"{show.speedup(1.0) if is_eager else show.ratio(speedup):<13}  "
        line += f"{show.seconds(r.compile_s):>9}   {show.label(r.config)}"
        is_first = r in first.values() and not is_eager
        lines.append(Text(line, "bold green" if is_first else ""))
    return lines


def progress(kind: str, file: TextIO) -> Progress:
    """What ``--progress`` asks for: ``auto`` is live on a terminal and plain elsewhere.

    Raises:
        UsageError: another kind.
    """
    if kind == "none":
        return Progress()
    if kind not in ("auto", "plain"):
        raise UsageError(f"there is no progress {kind!r}", hint="--progress auto (or plain, none)")
    # A dumb terminal cannot move the cursor, and without Unicode there is no board to draw.
    able = os.environ.get("TERM") != "dumb" and "utf" in (file.encoding or "").lower()
    if kind == "auto" and file.isatty() and able:
        return LiveProgress(Console(file=file))
    return PlainProgress(file)
