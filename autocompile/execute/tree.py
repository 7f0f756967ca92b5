"""A trial's process tree: how much memory it holds, and how to leave nothing of it alive.

Linux is read through /proc. Elsewhere only the process group is known, and memory is not capped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

__all__ = ["MARKER", "available_memory_bytes", "kill_tree", "oom_kills", "tree_memory_bytes"]

MARKER = "AUTOCOMPILE_TRIAL"
"""Environment variable that every descendant of a trial inherits, with a value of its own."""

_PROC = Path("/proc")


def _marked(value: str) -> list[int]:
    """Processes whose environment carries the marker, zombies and ourselves left out."""
    needle = f"{MARKER}={value}".encode()
    found = []
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def kill_tree(group: int, marker: str, patience_s: float = 10.0) -> bool:
    """Kill a process group and every process that carries the marker, wherever it hid.

    Returns:
        Whether two passes in a row found nothing alive.
    """
    deadline = time.monotonic() + patience_s
    quiet = 0
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    while quiet < 2 and time.monotonic() < deadline:
        alive = _marked(marker)
        quiet = 0 if alive else quiet + 1
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if alive:
            time.sleep(0.02)
    return quiet >= 2


def _children(pid: int) -> list[int]:
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
        return [int(c) for t in tasks for c in (t / "children").read_text().split()]
    except (OSError, ValueError):
        return []


def tree_memory_bytes(root: int) -> int:
    """Resident memory of a process and its descendants, shared pages of files left out."""
    total, todo = 0, [root]
    page = os.sysconf("SC_PAGE_SIZE")
    while todo:
        pid = todo.pop()
        try:
            _, resident, shared, *_ = (_PROC / str(pid) / "statm").read_text().split()
        except (OSError, ValueError):
            continue
        total += (int(resident) - int(shared)) * page
        todo += _children(pid)
    return total


def _number_behind(path: Path, name: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def available_memory_bytes() -> int | None:
    """Memory that can be had without swapping, the container's limit counted in."""
    kib = _number_behind(_PROC / "meminfo", "MemAvailable:")
    if kib is None:
        return None
    available = kib * 1024
    for limit, used in (("memory.max", "memory.current"),):
        try:
            folder = Path("/sys/fs/cgroup")
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            available = min(available, left)
        except (OSError, ValueError):
            continue
    return available


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    return _number_behind(_PROC / "vmstat", "oom_kill ") or 0
