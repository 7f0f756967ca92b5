"""Progress of a run: a stable line for each event; on a terminal also what goes on now.

Neither waits, sleeps or starts a thread.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autocompile.errors import UsageError
from autocompile.progress import Progress
from autocompile.report import text as show
from autocompile.report.contents import same_as
from autocompile.settings.config import Setting
from autocompile.store.record import Outcome, Record, Step
from autocompile.store.recorded_calls import workload_of

Json = Mapping[str, Any]

_ORDER = list(Step)
_DOING = {
    Step.IMPORT: "starting",
    Step.BUILD: "building",
    Step.EAGER: "running eager",
    Step.COMPILE: "compiling",
    # Nothing is drawn while a trial measures, so this text stays until it ends.
    Step.VERIFY: "verifying, then measuring",
    Step.MEASURE: "measuring",
    Step.EXIT: "finishing",
}


def progress(kind: str, file: TextIO) -> Progress:
    """What ``--progress`` asks for: ``auto`` is live on a terminal and plain elsewhere."""
    if kind == "none":
        return Progress()
    if kind not in ("auto", "plain"):
        raise UsageError(
            f"there is no progress {kind!r}", hint="--progress auto (or plain, none)"
        )
    # A dumb terminal cannot move the cursor, and without Unicode there is no bar to draw.
    able = os.environ.get("TERM") != "dumb" and "utf" in (file.encoding or "").lower()
    if kind == "auto" and file.isatty() and able:
        return LiveProgress(Console(file=file))
    return PlainProgress(file)


class PlainProgress(Progress):
    """One stable line for each finished trial, for files, pipes and logs of CI."""

    def __init__(
        self,
        file: IO[str],
        clock: Callable[[], float] = time.monotonic,
        prefix: str = "",
    ) -> None:
        self._file, self._clock, self._began, self._run_dir = file, clock, clock(), ""
        self._prefix = prefix  # of each line
        self._target: Json = {}

    def header(self, target: Json, environment: Json, run_dir: str) -> None:
        self._run_dir, self._target = show.plain(run_dir), target
        self._line(show.machine(environment))
        self._line(f"target  {show.target_name(target)}")
        for name, why in (target.get("choices") or {}).items():
            self._line(f"        {show.plain(name)}: {show.plain(why)}")
        self._line(f"run     {self._run_dir}")

    def searching(self, spaces: Mapping[str, str], budget: Any) -> None:
        for name, space in spaces.items():
            self._line(f"space   {show.plain(name)} · {show.plain(space)}")
        if budget.total_s is not None:
            self._line(f"budget  {show.clock(budget.total_s)}")

    def ended(self, record: Record, left: int) -> None:
        batch = self._cell(record.phase, record.batch_size)
        line = f"#{record.number:<2} {record.outcome.value:<8} {batch:<29} "
        self._event(f"{line}{show.label(record.config):<32} {self._result(record)}")

    def racing(
        self, phase: str, batch_size: int | None, sides: int, number: int
    ) -> None:
        self._event(
            f"race of {self._cell(phase, batch_size)}, set {number}: {sides} beside eager"
        )

    def warning(self, text: str) -> None:
        self._line(f"warning: {show.plain(text)}")

    def _cell(self, phase: str, batch_size: int | None) -> str:
        if batch_size is None:
            return phase
        calls = workload_of(phase, self._target).get("calls", 1)
        if calls > 1:
            return f"{phase} {calls} calls"
        return f"{phase} batch {batch_size}"

    def _result(self, record: Record) -> str:
        if record.duplicate_of is not None:
            return same_as(record.duplicate_of, record.outcome is Outcome.OK)
        if not record.ok or record.measurement is None:
            message = show.shorten(show.plain(record.message), 200)
            # A setting that is known not to work here had no process, and so has no log.
            log = (
                f"{self._run_dir}/trials/{record.number:04d}/log.txt"
                if record.wall_s
                else ""
            )
            return " · ".join(
                filter(None, (message or f"in step {record.step.value}", log))
            )
        eager, compile_s = record.config.is_baseline, record.compile_s
        result = show.speedup(1.0) if eager else show.ratio(record.measurement.speedup)
        result += (
            "" if compile_s is None else f"  compile {show.seconds(compile_s, '')}"
        )
        result += "" if record.repeats is None else f"  repeats #{record.repeats}"
        return result + (
            f"  on {show.plain(at)}" if (at := record.detail.get("station")) else ""
        )

    def _event(self, line: str) -> None:
        self._line(f"[{self._clock() - self._began:4.0f}s] {line}")

    def _line(self, line: str) -> None:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        # Where nobody reads any more, the run goes on all the same.
        with suppress(OSError):
            self._file.write(
                show.encodable(f"{self._prefix}{line.rstrip()}\n", encoding)
            )
            self._file.flush()


class LiveProgress(PlainProgress):
    """The lines of a log, and below them, redrawn in place, the budget and what goes on now.

    It is drawn on events and ticks only, and never while a trial measures: drawing takes a core
    for some milliseconds, which on a CPU would disturb a running measurement.
    """

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console.file, clock)
        self._console = console
        self._live = Live(
            console=console, auto_refresh=False, redirect_stdout=False, transient=True
        )
        self._waiting: list[str] = []  # lines to print once nothing measures
        self._now = "looking at the machine, torch and the target ..."
        self._budget: Any = None  # its total_s, None for no end, and spent_s
        self._is_race = self._closed = False
        # Setting, and since when in its step.
        self._running: dict[int, tuple[str, float]] = {}
        self._steps: dict[int, Step] = {}  # of trials, and of the processes of a race
        self._left = 0
        self._counts: Counter[str] = Counter()

    def searching(self, spaces: Mapping[str, str], budget: Any) -> None:
        self._budget, self._now = budget, show.NONE
        super().searching(spaces, budget)
        self._line("        Ctrl-C stops and reports · --resume continues")

    def started(self, number: int, setting: Setting) -> None:
        if self._is_race:
            self._is_race, self._now, self._steps = False, show.NONE, {}
        label = f"{self._cell(setting.phase, setting.batch_size)} · {show.label(setting.config)}"
        self._running[number] = label, self._clock()
        self.step(number, Step.IMPORT)

    def step(self, number: int, step: Step) -> None:
        if running := self._running.get(number):
            if self._steps.get(number) is Step.MEASURE and step is Step.VERIFY:
                # Verified once more after the timing: no measurement follows.
                step = Step.EXIT
            self._running[number] = running[0], self._clock()
        if running or self._is_race:
            self._steps[number] = step
        self.tick()

    def over(self, number: int) -> None:
        self._running.pop(number, None)
        self._steps.pop(number, None)

    def ended(self, record: Record, left: int) -> None:
        self._running.pop(record.number, None)
        self._steps.pop(record.number, None)
        if record.role == "search":
            self._left = left
            self._counts[
                "same" if record.duplicate_of is not None else record.outcome.value
            ] += 1
        if record.wall_s:  # what had no process is counted alone
            super().ended(record, left)
        self.tick()

    def racing(
        self, phase: str, batch_size: int | None, sides: int, number: int
    ) -> None:
        self._is_race, self._now, self._steps = True, "racing", {}
        super().racing(phase, batch_size, sides, number)

    def tick(self) -> None:
        if Step.MEASURE not in self._steps.values():
            self._draw()

    def close(self) -> None:
        if not self._closed:
            spent = show.clock(self._budget.spent_s) if self._budget else "0:00"
            self._waiting.append(f"{self._tried()} in {spent}")
            self._draw()
        self._closed = True
        self._live.stop()

    def _line(self, line: str) -> None:
        self._waiting.append(line)
        self.tick()

    def _draw(self) -> None:
        if self._closed:
            return
        self._live.start()
        while self._waiting:
            self._console.print(Text(self._waiting.pop(0)), soft_wrap=True)
        below = Table.grid(padding=(0, 2))
        if self._budget:
            share, time_left = self._progress(self._budget)
            bar = ProgressBar(total=1, completed=share, width=20)
            below.add_row(bar, _short(f"{time_left}   {self._tried()}"))
        self._live.update(Group(below, _short(self._doing())), refresh=True)

    def _progress(self, budget: Any) -> tuple[float, str]:
        """The share of the budget that is spent; without one, of the settings that are tried."""
        total_s, spent_s = budget.total_s, budget.spent_s
        if total_s is None:
            tried = self._counts.total()
            every = tried + self._left
            return tried / max(1, every), f"{tried}/{every} · {show.clock(spent_s)}"
        left = show.clock(max(0.0, total_s - spent_s))
        return min(1.0, spent_s / total_s), f"{show.clock(spent_s)} · {left} left"

    def _tried(self) -> str:
        kinds = sorted(
            self._counts.items(), key=lambda k: (k[0] != Outcome.OK.value, -k[1])
        )
        counts = (f"{count} {kind}" for kind, count in kinds)
        return " · ".join((f"{self._counts.total()} tried", *counts))

    def _doing(self) -> str:
        if not self._running:
            return self._now
        # The one that has come farthest, and how many are beside it.
        number = max(
            self._running, key=lambda number: _ORDER.index(self._steps[number])
        )
        (setting, since), step = self._running[number], self._steps[number]
        lasts, beside = round(self._clock() - since), len(self._running) - 1
        doing = _DOING[step] + (
            f" {lasts} s" if lasts and step is not Step.VERIFY else ""
        )
        doing += f" · and {beside} beside it" if beside else ""
        return f"#{number} {setting} · {doing}"


def _short(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
