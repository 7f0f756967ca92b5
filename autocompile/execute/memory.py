"""Free memory and cores of the machine, and cgroups that limit a trial's memory.

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
from typing import NamedTuple

from autocompile.store.files import hold, is_forgotten

__all__ = [
    "Cgroup",
    "available_memory_bytes",
    "default_jobs",
    "most_memory_bytes",
    "oom_kills",
    "usable_cores",
]

_TRIAL_BYTES = 2 * 2**30  # assumed need of a trial
_FEW_JOBS = 4


class _Files(NamedTuple):
    """Names of a cgroup's files in one version of cgroups."""

    limit: str
    used: str
    swap: str
    kills: str
    own_kills: str  # without those of its children


_VERSION_1 = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.swappiness",
    "memory.oom_control",
    "memory.oom_control",
)
_VERSION_2 = _Files(
    "memory.max", "memory.current", "memory.swap.max", "memory.events", "memory.events.local"
)


_LIMITS = [
    "memory.max",
    "memory.high",
    "memory.limit_in_bytes",
    "cpu.max",
    "pids.max",
    "cpuset.cpus",
]
_NO_LIMIT = 2**62  # bytes; version 1 has a number for it


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number_behind(path: Path, name: str) -> int | None:
    words = _words(path)
    with contextlib.suppress(ValueError, IndexError):
        return int(words[words.index(name) + 1])
    return None


def _hierarchies(controller: str) -> list[list[tuple[Path, _Files]]]:
    """The cgroups that this process is in, of each hierarchy from its own outwards."""
    try:
        memberships = [m.split(":", 2) for m in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [m.split() for m in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, place_of_mount, kind, options, *_ in mounts:
        mount, flags = Path(place_of_mount), options.split(",")
        for _, controllers, place in memberships:
            if kind == "cgroup2" and controllers == "":
                files = _VERSION_2
            elif kind == "cgroup" and controller in flags and controller in controllers.split(","):
                files = _VERSION_1
            else:
                continue
            inside = mount / place.strip().lstrip("/")
            own = inside if inside.is_dir() else mount  # in a container, the mount is our own group
            every = (own, *own.parents)
            found.append([(p, files) for p in every if p.is_relative_to(mount)])
    return found


def _own_groups() -> list[tuple[Path, _Files]]:
    """Folder and files of each memory cgroup that this process is in."""
    return [group for groups in _hierarchies("memory") for group in groups]


def _is_limited(group: Path) -> bool:
    """Whether a group limits something: outside of it a trial would not be held to that."""
    first = [words[0] for name in _LIMITS if (words := _words(group / name))]
    return any(not each.isdigit() or int(each) < _NO_LIMIT for each in first if each != "max")


class Cgroup:
    """A cgroup for one trial; a process joins by writing its pid to ``entrance``."""

    def __init__(self, folder: Path, files: _Files) -> None:
        self._folder, self._files = folder, files
        self.entrance, self._held = folder / "cgroup.procs", hold(folder)

    @classmethod
    def build(cls, limit_bytes: int) -> Cgroup | None:
        """A new cgroup with a memory limit; None where this process may not create one.

        In our own group, or beside it where that limits nothing.
        """
        name = f"autocompile-{os.getpid()}-{secrets.token_hex(6)}"
        places = [
            each
            for (own, files), *outer in _hierarchies("memory")
            for each in [(own, files), *(outer[:1] if not _is_limited(own) else ())]
        ]
        for parent, files in places:
            for forgotten in filter(is_forgotten, parent.glob("autocompile-*-*")):
                with contextlib.suppress(OSError):  # of a tuner that was killed
                    forgotten.rmdir()
            controllers = _words(parent / "cgroup.subtree_control")
            if files is _VERSION_2 and "memory" not in controllers:
                continue  # a group that has processes cannot enable memory for its children
            folder = parent / name
            try:
                folder.mkdir()
                (folder / files.limit).write_text(str(limit_bytes))
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                continue
            with contextlib.suppress(OSError):  # with swap, the limit would only make it slow
                (folder / files.swap).write_text("0")
            return cls(folder, files)
        return None

    def kills(self) -> int:
        """How many of its processes the OOM killer has ended."""
        return _number_behind(self._folder / self._files.kills, "oom_kill") or 0

    def remove(self) -> None:
        """Remove the group; its processes must have ended."""
        os.close(self._held)
        for _ in range(20):
            try:
                self._folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:  # the kernel is still removing the last process
                time.sleep(0.005)


def oom_kills() -> int:
    """How many processes the OOM killer has ended so far; only differences are meaningful.

    Counts our own cgroup without its children where the kernel reports that, else the machine.
    """
    for folder, files in _own_groups():
        kills = _number_behind(folder / files.own_kills, "oom_kill")
        if kills is not None:
            return kills
    return _number_behind(Path("/proc/vmstat"), "oom_kill") or 0


def available_memory_bytes() -> int:
    """Memory available without swapping, within the limits of our cgroups."""
    known = (_number_behind(Path("/proc/meminfo"), n) for n in ("MemAvailable:", "MemTotal:"))
    available = 1024 * next(filter(None, known), 0)
    for folder, files in _own_groups():
        with contextlib.suppress(OSError, ValueError):
            left = int((folder / files.limit).read_text()) - int((folder / files.used).read_text())
            cached = _number_behind(folder / "memory.stat", "inactive_file") or 0
            available = min(available, left + cached)
    return max(0, available)


def most_memory_bytes() -> int:
    """Memory limit for all trials together: 80 % of what is available."""
    return int(available_memory_bytes() * 0.8)


def usable_cores() -> int:
    """How many cores this process may use, by its affinity and the quotas of its cgroups."""
    cores: float = len(os.sched_getaffinity(0))
    for groups in _hierarchies("cpu"):
        for group, _ in groups:
            quota = _words(group / "cpu.max") or [
                *_words(group / "cpu.cfs_quota_us"),
                *_words(group / "cpu.cfs_period_us"),
            ]
            with contextlib.suppress(ValueError, ZeroDivisionError):
                if len(quota) == 2 and float(quota[0]) > 0:
                    cores = min(cores, float(quota[0]) / float(quota[1]))
    return max(1, math.ceil(cores))


def default_jobs() -> int:
    """One job for each core up to four, and from sixteen cores on as many as each has threads.

    A compile uses several cores: sixteen of one thread each would all end late. As far as memory
    allows.
    """
    cores = usable_cores()
    jobs = cores if cores <= _FEW_JOBS else max(_FEW_JOBS, math.isqrt(cores))
    return max(1, min(jobs, available_memory_bytes() // _TRIAL_BYTES))
