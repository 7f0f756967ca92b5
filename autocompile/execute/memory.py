"""Free memory of the machine, and cgroups that limit a trial's memory.

Where this process may create a memory cgroup (version 2 or 1, see cgroups(7)), the kernel
enforces the limit. Elsewhere the executor polls the process tree twice a second, or less often so
as to use at most one percent of a core.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from pathlib import Path

__all__ = [
    "Cgroup",
    "available_memory_bytes",
    "default_jobs",
    "most_memory_bytes",
    "oom_kills",
    "usable_cores",
]

_PROC = Path("/proc")
_TRIAL_BYTES = 2 * 2**30  # assumed need of a trial
_MOST_JOBS = 16


def _number_behind(path: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return None


def _own_groups() -> list[tuple[Path, bool]]:
    """(folder, whether it is version 2) of each memory cgroup that this process is in."""
    try:
        memberships = [m.split(":", 2) for m in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [m.split() for m in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, place_of_mount, kind, options, *_ in mounts:
        mount, flags = Path(place_of_mount), options.split(",")
        for _, controllers, place in memberships:
            inside = mount / place.strip().lstrip("/")
            if kind == "cgroup2" and controllers == "":
                found += [(p, True) for p in (inside, inside.parent) if p.is_dir()]
            elif kind == "cgroup" and "memory" in flags and "memory" in controllers.split(","):
                # In a container, the root of the mount is our own group.
                found += [(p, False) for p in (inside, mount) if p.is_dir()]
    return found


class Cgroup:
    """A cgroup with a memory limit, for one trial.

    Attributes:
        entrance: a process joins by writing its pid to this file.
    """

    def __init__(self, folder: Path, version_2: bool) -> None:
        self._folder, self._version_2 = folder, version_2
        self.entrance = folder / "cgroup.procs"

    @classmethod
    def build(cls, limit_bytes: int) -> Cgroup | None:
        """A new cgroup; None where this process may not create one."""
        name = f"autocompile-{os.getpid()}-{secrets.token_hex(6)}"
        for parent, version_2 in _own_groups():
            _remove_forgotten(parent)
            if version_2 and "memory" not in _words(parent / "cgroup.subtree_control"):
                continue  # a group that has processes cannot enable memory for its children
            folder = parent / name
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                limit = "memory.max" if version_2 else "memory.limit_in_bytes"
                (folder / limit).write_text(str(limit_bytes))
                # Without swap: the limit would otherwise only make the trial slow.
                swap = ("memory.swap.max", "0") if version_2 else ("memory.swappiness", "0")
                with contextlib.suppress(OSError):
                    (folder / swap[0]).write_text(swap[1])
                return cls(folder, version_2)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        return None

    def kills(self) -> int:
        """How many of its processes the OOM killer has ended."""
        name = "memory.events" if self._version_2 else "memory.oom_control"
        return _number_behind(self._folder / name, "oom_kill ") or 0

    def remove(self) -> None:
        """Remove the group; its processes must have ended."""
        for _ in range(20):
            try:
                self._folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:  # the kernel is still removing the last process
                time.sleep(0.005)


def _remove_forgotten(parent: Path) -> None:
    """Remove the cgroups of tuners that were killed."""
    for folder in parent.glob("autocompile-*-*"):
        tuner = folder.name.split("-")[1]
        if tuner.isdigit() and not (_PROC / tuner).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def usable_cores() -> int:
    """How many cores this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _words(Path("/sys/fs/cgroup/cpu.max")) or [
        *_words(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")),
        *_words(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")),
    ]
    with contextlib.suppress(ValueError, ZeroDivisionError):
        if len(quota) == 2 and float(quota[0]) > 0:
            return max(1, min(cores or 1, math.ceil(float(quota[0]) / float(quota[1]))))
    return cores or 1


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def available_memory_bytes() -> int | None:
    """Memory available without swapping, within the limits of our cgroups; None if unknown."""
    kib = _number_behind(_PROC / "meminfo", "MemAvailable:")
    if kib is None:
        return None
    available = kib * 1024
    for folder, version_2 in _own_groups():
        limit, used = (
            ("memory.max", "memory.current")
            if version_2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        with contextlib.suppress(OSError, ValueError):
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            cached = _number_behind(folder / "memory.stat", "inactive_file ") or 0
            available = min(available, left + cached)
    return available


def oom_kills() -> int:
    """How many processes the OOM killer has ended so far; only differences are meaningful.

    Counts our own cgroup without its children where the kernel reports that, else the machine.
    """
    for folder, version_2 in _own_groups():
        name = "memory.events.local" if version_2 else "memory.oom_control"
        kills = _number_behind(folder / name, "oom_kill ")
        if kills is not None:
            return kills
    return _number_behind(_PROC / "vmstat", "oom_kill ") or 0


def most_memory_bytes() -> int | None:
    """Memory limit for all trials together: 80 % of what is available; None if unknown."""
    free = available_memory_bytes()
    return None if free is None else int(free * 0.8)


def default_jobs() -> int:
    """One job for each core, as far as memory allows, at most 16."""
    free = available_memory_bytes()
    by_memory = _MOST_JOBS if free is None else free // _TRIAL_BYTES
    return max(1, min(usable_cores(), by_memory, _MOST_JOBS))
