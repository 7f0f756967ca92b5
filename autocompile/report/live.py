"""Progress of a run: a live board on a terminal, stable lines for files, pipes and logs.

Neither waits, sleeps or starts a thread.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autocompile.errors import UsageError
from autocompile.progress import Countdown, Progress
from autocompile.report import text as show
from autocompile.report.contents import same_as
from autocompile.settings.config import CompileConfig, Setting
from autocompile.store.record import Outcome, Record, Step

Json = Mapping[str, Any]

_LINES = 16
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
        raise UsageError(f"there is no progress {kind!r}", hint="--progress auto (or plain, none)")
    # A dumb terminal cannot move the cursor, and without Unicode there is no board to draw.
    able = os.environ.get("TERM") != "dumb" and "utf" in (file.encoding or "").lower()
    if kind == "auto" and file.isatty() and able:
        return LiveProgress(Console(file=file))
    return PlainProgress(file)


def _cell(phase: str, batch_size: int | None) -> str:
    return phase if batch_size is None else f"{phase} batch {batch_size}"


class PlainProgress(Progress):
    """One stable line for each finished trial, for files, pipes and logs of CI."""

    def __init__(
        self, file: TextIO, clock: Callable[[], float] = time.monotonic, prefix: str = ""
    ) -> None:
        self._file, self._clock, self._began, self._run_dir = file, clock, clock(), ""
        self._prefix = prefix  # of each line

    def header(self, target: Json, environment: Json, run_dir: str) -> None:
        self._run_dir = show.plain(run_dir)
        self._line(show.machine(environment))
        self._line(f"target  {show.target_name(target)}")
        for name, why in (target.get("choices") or {}).items():
            self._line(f"        {show.plain(name)}: {show.plain(why)}")
        self._line(f"run     {self._run_dir}")

    def searching(self, spaces: Mapping[str, str], budget: Countdown) -> None:
        for name, space in spaces.items():
            self._line(f"space   {show.plain(name)} · {show.plain(space)}")
        if budget.total_s is not None:
            self._line(f"budget  {show.clock(budget.total_s)}")

    def ended(self, record: Record, left: int) -> None:
        batch = _cell(record.phase, record.batch_size)
        line = f"#{record.number:<2} {record.outcome.value:<8} {batch:<29} "
        self._event(f"{line}{show.label(record.config):<32} {self._result(record)}")

    def racing(self, phase: str, batch_size: int | None, sides: int, number: int) -> None:
        self._event(f"race of {_cell(phase, batch_size)}, set {number}: {sides} beside eager")

    def warning(self, text: str) -> None:
        self._line(f"warning: {show.plain(text)}")

    def _result(self, record: Record) -> str:
        if record.duplicate_of is not None:
            return same_as(record.duplicate_of, record.outcome is Outcome.OK)
        if not record.ok or record.measurement is None:
            message = show.shorten(show.plain(record.message), 200)
            # A setting that is known not to work here had no process, and so has no log.
            log = f"{self._run_dir}/trials/{record.number:04d}/log.txt" if record.wall_s else ""
            return " · ".join(filter(None, (message or f"in step {record.step.value}", log)))
        eager, compile_s = record.config.is_baseline, record.compile_s
        result = show.speedup(1.0) if eager else show.ratio(record.measurement.speedup)
        result += "" if compile_s is None else f"  compile {show.seconds(compile_s, '')}"
        result += "" if record.repeats is None else f"  repeats #{record.repeats}"
        return result + (f"  on {show.plain(at)}" if (at := record.detail.get("station")) else "")

    def _event(self, line: str) -> None:
        self._line(f"[{self._clock() - self._began:4.0f}s] {line}")

    def _line(self, line: str) -> None:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        with suppress(OSError):  # where nobody reads any more, the run goes on all the same
            self._file.write(show.encodable(f"{self._prefix}{line.rstrip()}\n", encoding))
            self._file.flush()


@dataclass(frozen=True)
class _Running:
    config: CompileConfig
    cell: str
    since: float
    step: Step = Step.IMPORT
    at: str = ""


class LiveProgress(Progress):
    """A board of at most 16 lines that is redrawn in place.

    It is drawn on events and ticks only, and never while a trial measures: drawing takes a core
    for some milliseconds, which on a CPU would disturb a running measurement.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)
        self._head: list[Text] = []
        self._race = ""
        self._spaces: Mapping[str, str] = {}
        self._budget: Countdown | None = None
        self._running: dict[int, _Running] = {}
        self._race_steps: dict[int, Step] = {}
        self._warnings: list[str] = []
        self._closed = False
        self._left = self._done = 0
        self._counts: Counter[str] = Counter()
        self._worked: list[Record] = []

    def header(self, target: Json, environment: Json, run_dir: str) -> None:
        self._head = [
            Text(show.machine(environment), "bold"),
            _labelled("target  ", show.target_name(target)),
            _labelled("run     ", show.plain(run_dir)),
        ]
        self.tick()

    def searching(self, spaces: Mapping[str, str], budget: Countdown) -> None:
        self._spaces, self._budget = spaces, budget
        self.tick()

    def started(self, number: int, setting: Setting, role: str) -> None:
        self._race, self._race_steps = "", {}
        cell = _cell(setting.phase, setting.batch_size)
        self._running[number] = _Running(setting.config, cell, self._clock())
        self.tick()

    def step(self, number: int, step: Step, station: str = "") -> None:
        if (running := self._running.get(number)) is not None:
            if running.step is Step.MEASURE and step is Step.VERIFY:
                step = Step.EXIT  # verified once more after the timing: no measurement follows
            self._running[number] = replace(running, step=step, since=self._clock(), at=station)
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
        self._race = f"race of {_cell(phase, batch_size)}, set {number}: {many} beside eager"
        self.tick()

    def warning(self, text: str) -> None:
        self._warnings.append(show.plain(text))
        self.tick()

    def tick(self) -> None:
        steps = [running.step for running in self._running.values()]
        if Step.MEASURE not in (*steps, *self._race_steps.values()):
            height = min(_LINES, max(self._console.height - 1, 1))
            lines = self._board()[:height]
            self._draw(lines, _leaderboard(self._worked, height - len(lines)))

    def close(self) -> None:
        spent = show.clock(self._budget.spent_s) if self._budget else "0:00"
        told = Text(f"{self._done} tried in {spent} · {self._kinds()}".rstrip(" ·"))
        self._draw([*self._head, told])
        self._closed = True
        self._live.stop()

    def _draw(self, lines: Sequence[Text], below: Sequence[Table] = ()) -> None:
        if self._closed:
            return
        self._live.start()
        while self._warnings:
            self._console.print(Text(f"warning: {self._warnings.pop(0)}", "red"), soft_wrap=True)
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        self._live.update(Group(*lines, *below), refresh=True)

    def _kinds(self) -> str:
        kinds = sorted(self._counts.items(), key=lambda k: (k[0] != Outcome.OK.value, -k[1]))
        return " · ".join(f"{count} {kind}" for kind, count in kinds)

    def _board(self) -> list[Text]:
        if not self._head:
            return [Text("looking at the machine, torch and the target ...", "dim")]
        *lines, run = self._head
        run = Text.assemble(run, ("          Ctrl-C stops and reports · --resume continues", "dim"))
        label = "space   "
        for name, space in self._spaces.items():
            lines.append(_labelled(label, show.plain(f"{name} · {space}")))
            label = " " * len(label)
        lines.append(run)
        if self._budget:
            lines += [Text(), self._bar(self._budget)]
        return [*lines, self._now()]

    def _bar(self, budget: Countdown) -> Text:
        """The share of the budget that is spent; without one, of the settings that are tried."""
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
            return _labelled(" now   ", self._race)
        if not self._running:
            return _labelled(" now   ", show.NONE)
        # The one that has come farthest, and how many are beside it.
        number, r = max(self._running.items(), key=lambda item: _ORDER.index(item[1].step))
        lasts = round(self._clock() - r.since) if r.step is not Step.VERIFY else 0
        doing = _DOING[r.step] + (f" {lasts} s" if lasts else "")
        doing += f" on {show.plain(r.at)}" if r.at else ""
        told = f"#{number} {r.cell} · {show.label(r.config)} · {doing}"
        beside = f"      and {len(self._running) - 1} beside it" if len(self._running) > 1 else ""
        return _labelled(" now   ", told + beside)


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((label, "dim"), text)


def _leaderboard(worked: Sequence[Record], height: int) -> list[Table]:
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
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for title in ("#", "phase", "batch", "per second", "against eager", "compile", "setting"):
        side = "left" if title in ("phase", "setting") else "right"
        table.add_column(title, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for r in order[: height - 1]:
        assert r.measurement is not None
        speedup, is_eager = speedups[r.number], r.config.is_plain_eager
        rate = speedup.scaled((r.batch_size or 1) / r.measurement.eager_call_s)
        gain = show.speedup(1.0) if is_eager else show.ratio(speedup)
        batch, compiles = show.or_dash(r.batch_size), show.seconds(r.compile_s)
        row = (str(r.number), r.phase, batch, show.measured(rate), gain, compiles)
        is_first = r in first.values() and not is_eager
        setting = Text(show.label(r.config))
        table.add_row(*row, setting, style="bold green" if is_first else "")
    return [table]
