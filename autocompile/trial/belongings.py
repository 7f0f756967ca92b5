"""What a process has beside its memory: what a fork loses, or shares with the process it is of.

Only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from autocompile.protocol import processes

_SETTLE_S = 0.3  # a thread that has been joined is listed for a moment
_USUAL_SIGNALS = 0x7FFFFFFF  # 1 to 31: the C library has some of the others for itself


@dataclass(frozen=True)
class Belongings:
    """What this process has now.

    Attributes:
        threads: those of C libraries, too.
        children: that have not ended.
        files: open descriptors and what they are of, without character devices.
        shared: memory that it writes to and a fork shares.
        timers: seconds until each goes off, 0 where none is set.
        rest: what is set of signals, limits, the session and the mask of files.
    """

    threads: int
    children: frozenset[int]
    files: frozenset[tuple[int, str]]
    shared: frozenset[str]
    timers: tuple[float, ...]
    rest: dict[str, object]

    @classmethod
    def now(cls) -> Belongings:
        kinds = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
        return cls(
            len(os.listdir("/proc/self/task")),
            frozenset(filter(_lives, processes.children(os.getpid()))),
            frozenset(_files()),
            frozenset(_shared_memory()),
            tuple(signal.getitimer(kind)[0] for kind in kinds),
            _rest(),
        )

    def has_more_threads(self, before: Belongings) -> bool:
        return self.threads > before.threads

    def more_than(self, before: Belongings) -> str:
        """What a process has that had only ``before``, in words; empty if nothing."""
        if count := self.threads - before.threads:
            return f"{abs(count)} thread{'s' * (abs(count) > 1)} {'left' if count > 0 else 'fewer'}"
        if more := self.children - before.children:
            return f"a process left running: {_name(min(more))}"
        if more_files := self.files - before.files:
            return f"left open: {min(more_files)[1]}"
        if self.files != before.files:
            return "it closes descriptors that are not its own"
        if self.shared - before.shared:
            return "it has memory that processes share"
        if any(self.timers):
            return "it sets a timer"
        changed = [name for name in self.rest if self.rest[name] != before.rest[name]]
        return f"it changes {changed[0]} of its process" if changed else ""


def settled(before: Belongings) -> Belongings:
    """What this process has, once threads and processes that are ending have ended."""
    deadline = time.monotonic() + _SETTLE_S
    while (now := Belongings.now()).more_than(before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return str(pid)


def _files() -> list[tuple[int, str]]:
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the listing itself is closed
            what = os.readlink(f"/proc/self/fd/{number}")
            if not stat.S_ISCHR(os.fstat(number).st_mode):
                found.append((number, what))
    return found


def _shared_memory() -> list[str]:
    """The mappings that a fork writes to, too."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if line.split()[1][1::2] == "ws"]


def _rest() -> dict[str, object]:
    status = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
    )
    masks = [
        int(status[name], 16) & _USUAL_SIGNALS
        for name in ("SigBlk", "SigIgn", "SigCgt")
    ]
    handlers = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    return {
        "signals": (masks, handlers),
        "the limits": Path("/proc/self/limits").read_text(),
        "the group": (os.getpgrp(), os.getsid(0)),
        "the mask of new files": status.get("Umask"),
    }
