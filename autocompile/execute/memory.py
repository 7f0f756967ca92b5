"""Memory of the machine and of a trial: what is free, and a cgroup that holds a trial to its limit.

Where this process may make a memory cgroup (version 2 or 1, see cgroups(7)) the kernel keeps the
limit, exactly and at once. Elsewhere the executor looks at the tree twice a second, less often
where that would take more than a percent of a core.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from pathlib import Path

__all__ = ["Cgroup", "available_memory_bytes", "most_memory_bytes", "oom_kills", "usable_cores"]

_PROC = Path("/proc")


def _number_behind(path: Path, name: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _own_groups() -> list[tuple[Path, bool]]:
    """Folders of the memory cgroups that this process is in, and whether each is version 2."""
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
                # In a container the mount shows our own group as its root.
                found += [(p, False) for p in (inside, mount) if p.is_dir()]
    return found


class Cgroup:
    """A cgroup with a memory limit, for one trial.

    Attributes:
        entrance: the file to which a process writes its pid to get in.
    """

    def __init__(self, folder: Path, version_2: bool) -> None:
        self._folder, self._version_2 = folder, version_2
        self.entrance = folder / "cgroup.procs"

    @classmethod
    def build(cls, limit_bytes: int) -> Cgroup | None:
        """A new cgroup; None where this process may not make one."""
        name = f"autocompile-{os.getpid()}-{secrets.token_hex(6)}"
        for parent, version_2 in _own_groups():
            _remove_forgotten(parent)
            if version_2 and "memory" not in _words(parent / "cgroup.subtree_control"):
                continue  # a group with processes of its own cannot hand memory to its children
            folder = parent / name
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                limit = "memory.max" if version_2 else "memory.limit_in_bytes"
                (folder / limit).write_text(str(limit_bytes))
                # Without swap, or the limit would only make the trial slow.
                swap = ("memory.swap.max", "0") if version_2 else ("memory.swappiness", "0")
                with contextlib.suppress(OSError):
                    (folder / swap[0]).write_text(swap[1])
                return cls(folder, version_2)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        return None

    def kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        name = "memory.events" if self._version_2 else "memory.oom_control"
        return _number_behind(self._folder / name, "oom_kill ") or 0

    def remove(self) -> None:
        """Remove the group; its processes must be gone."""
        for _ in range(20):
            try:
                self._folder.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:  # the last process is still being taken apart
                time.sleep(0.005)


def _remove_forgotten(parent: Path) -> None:
    """Remove the cgroups of tuners that were killed; their trials died with them."""
    for folder in parent.glob("autocompile-*-*"):
        tuner = folder.name.split("-")[1]
        if tuner.isdigit() and not (_PROC / tuner).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def usable_cores() -> int:
    """How many cores this process may use: those it may run on, or its container's quota."""
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
    """Memory that can be had without swapping, the limits of our own cgroups counted in."""
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
        try:
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
        except (OSError, ValueError):
            continue
        cached = _number_behind(folder / "memory.stat", "inactive_file ") or 0
        available = min(available, left + cached)
    return available


def oom_kills() -> int:
    """How many processes near us the kernel has killed for want of memory.

    Those of our own cgroup, without the cgroups in it, where the kernel counts them; else those
    of the whole machine. Only a difference of two calls says something.
    """
    for folder, version_2 in _own_groups():
        name = "memory.events.local" if version_2 else "memory.oom_control"
        kills = _number_behind(folder / name, "oom_kill ")
        if kills is not None:
            return kills
    return _number_behind(_PROC / "vmstat", "oom_kill ") or 0


def most_memory_bytes() -> int | None:
    """What trials may hold together: most of what is free; None where that is not known."""
    free = available_memory_bytes()
    return None if free is None else int(free * 0.8)
