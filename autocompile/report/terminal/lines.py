"""Progress of a run as stable lines for files, pipes and logs.

It neither waits nor sleeps nor starts a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from autocompile.progress import Countdown, Progress
from autocompile.report import facts as said
from autocompile.report import text as show
from autocompile.store.record import Record

__all__ = [
    "Json",
    "PlainProgress",
    "cell_name",
]

Json = Mapping[str, Any]


class PlainProgress(Progress):
    """One stable line for each finished trial, for files, pipes and logs of CI."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock, self._began, self._run_dir = file, clock, clock(), ""

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
        batch = cell_name(record.phase, record.batch_size)
        line = f"#{record.number:<2} {record.outcome.value:<8} {batch:<29} "
        self._event(f"{line}{show.label(record.config):<32} {self._result(record)}")

    def racing(self, phase: str, batch_size: int | None, sides: int, number: int) -> None:
        self._event(f"race of {cell_name(phase, batch_size)}, set {number}: {sides} beside eager")

    def warning(self, text: str) -> None:
        self._line(f"warning: {show.plain(text)}")

    def _result(self, record: Record) -> str:
        if record.duplicate_of is not None:
            return said.same_as(record.duplicate_of, record.outcome.value)
        if not record.ok or record.measurement is None:
            message = show.shorten(show.plain(record.message), 200)
            # A setting that is known not to work here had no process, and so has no log.
            log = f"{self._run_dir}/trials/{record.number:04d}/log.txt" if record.wall_s else ""
            return " · ".join(filter(None, (message or f"in step {record.step.value}", log)))
        eager, compile_s = record.config.is_baseline, record.compile_s
        result = show.speedup(1.0) if eager else show.ratio(record.measurement.speedup)
        result += "" if compile_s is None else f"  compile {show.seconds(compile_s, '')}"
        return result + ("" if record.repeats is None else f"  repeats #{record.repeats}")

    def _event(self, line: str) -> None:
        self._line(f"[{self._clock() - self._began:4.0f}s] {line}")

    def _line(self, line: str) -> None:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        with suppress(OSError):  # where nobody reads any more, the run goes on all the same
            self._file.write(show.encodable(line.rstrip(), encoding) + "\n")
            self._file.flush()


def cell_name(phase: str, batch_size: int | None) -> str:
    """A phase and its batch size in words."""
    return phase if batch_size is None else f"{phase} batch {batch_size}"
