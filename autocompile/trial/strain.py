"""What keeps this process from running at full speed while it is timed: others, and heat.

A block of 20 ms in which a thread waited for a core says nothing about the code that was timed.
The kernel counts that wait for each thread in nanoseconds (``/proc/.../schedstat``, see
sched-stats in the kernel's documentation), some hypervisors say what they took from a core, a
container's quota counts the time in which it was held back, NVML says when a GPU lowers its clock,
and what no counter shows, the pace does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autocompile.trial.pace import Pace

__all__ = ["Mark", "Strain"]

_TOLERATED = 0.02  # share of a round that a thread may wait: what the kernel's own work causes
_QUOTAS = (
    ("/sys/fs/cgroup/cpu.stat", "throttled_usec", 1e-6),
    ("/sys/fs/cgroup/cpu/cpu.stat", "throttled_time", 1e-9),
)
# Hardware slowdown, heat seen by software and by hardware, power brake (nvml.h,
# ClocksEventReason). The power cap is left out: under it a busy GPU runs all the time.
_SLOWED = 0x08 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class Mark:
    """A moment.

    Attributes:
        clock_s: of the clock, in seconds.
        waited_s: seconds that each of our threads has waited for a core.
        stolen_s: seconds that the hypervisor took from our cores, on average.
        held_back_s: seconds that our quota held us back.
        pace: the number of the pace's sample; the next one is taken where the stretch ends.
    """

    clock_s: float
    waited_s: dict[str, float]
    stolen_s: float
    held_back_s: float
    pace: int


class Strain:
    """Tells whether a stretch of time was disturbed; on a system that does not say, none is.

    Args:
        device: what is timed; the state of a CUDA device is asked from NVML.
        pace: of this process; None: not looked at.
    """

    def __init__(self, device: torch.device, pace: Pace | None = None) -> None:
        self._pace = pace
        self._quota = next((q for q in _QUOTAS if os.access(q[0], os.R_OK)), None)
        self._gpu = _Gpu.of(device) if device.type == "cuda" else None
        self.throttled = False
        self._clocks_mhz: list[int] = []
        self._disturbances: Counter[str] = Counter()
        self._first = time.perf_counter(), _waited_s(), _stolen_s()
        # Where nothing was ever stolen nobody counts it; the file has a line for each core.
        self._is_stolen_from = self._first[2] > 0

    def mark(self) -> Mark:
        """Now."""
        pace = self._pace.sample() if self._pace else 0
        stolen_s = _stolen_s() if self._is_stolen_from else 0.0
        return Mark(time.perf_counter(), _waited_s(), stolen_s, self._held_back_s(), pace)

    def disturbed_since(self, mark: Mark) -> frozenset[str]:
        """What slowed this process since then; notes it.

        ``waited``, ``stolen``, ``throttled`` or ``slow``.
        """
        wall_s = max(time.perf_counter() - mark.clock_s, 1e-9)
        waited_s = _longest_wait_s(mark.waited_s)
        stolen_s = _stolen_s() - mark.stolen_s if self._is_stolen_from else 0.0
        held_back_s = self._held_back_s() - mark.held_back_s
        slowed = self._gpu is not None and self._gpu.is_slowed()
        if self._gpu is not None and (clock := self._gpu.clock_mhz()):
            self._clocks_mhz.append(clock)
        throttled = slowed or held_back_s > _TOLERATED * wall_s
        self.throttled = self.throttled or throttled
        if self._pace:
            self._pace.sample()
        found = {
            "throttled": throttled,
            "slow": self.slow([mark])[0],
            "waited": waited_s > _TOLERATED * wall_s,
            "stolen": stolen_s > _TOLERATED * wall_s,
        }
        names = frozenset(name for name, is_so in found.items() if is_so)
        self._disturbances.update(names)
        return names

    def slow(self, marks: Sequence[Mark]) -> list[bool]:
        """Of stretches that have ended, by their marks: was the pace slow at the begin or the end?

        By what is known now: at first a process cannot know how fast it can be.
        """
        samples = self._pace.slow() if self._pace else []
        return [any(samples[mark.pace : mark.pace + 2]) for mark in marks]

    def summary(self) -> dict[str, Any]:
        """What there was since this was made.

        Shares of the time; how many stretches seemed disturbed by what when they ended; clocks of a
        GPU; load.
        """
        then, waited_s, stolen_s = self._first
        wall_s = max(time.perf_counter() - then, 1e-9)
        found: dict[str, Any] = {
            "waited": round(_longest_wait_s(waited_s) / wall_s, 4),
            "stolen": round((_stolen_s() - stolen_s) / wall_s, 4),
            "throttled": self.throttled,
            "disturbed": dict(self._disturbances),
        }
        with contextlib.suppress(OSError):
            found["load"] = round(os.getloadavg()[0], 2)
        if self._clocks_mhz:
            found["clock_mhz"] = [min(self._clocks_mhz), max(self._clocks_mhz)]
        return found

    def _held_back_s(self) -> float:
        if self._quota is None:
            return 0.0
        path, name, unit = self._quota
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(path).read_text().splitlines():
                if line.startswith(name):
                    return int(line.split()[1]) * unit
        return 0.0


def _waited_s() -> dict[str, float]:
    """Of each thread there is."""
    found = {}
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            # Without pathlib, which takes longer than the reading.
            path = f"/proc/self/task/{task}/schedstat"
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(path, "rb", buffering=0) as file,
            ):
                found[task] = int(file.read().split()[1]) / 1e9
    return found


def _longest_wait_s(before: dict[str, float]) -> float:
    """Of the thread that waited longest since then: of many that work together the last counts.

    Not the sum, which among 64 threads is large when each waited next to nothing.
    """
    return max((s - before.get(task, 0.0) for task, s in _waited_s().items()), default=0.0)


def _stolen_s() -> float:
    """What the hypervisor has admitted to have taken from each of our cores (proc(5), ``steal``).

    The mean over the cores: which of them ours run on is not known, and in a container of many
    cores most belong to others.
    """
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        ours = {b"cpu%d" % core for core in os.sched_getaffinity(0)}
        with open("/proc/stat", "rb", buffering=0) as file:
            rows = [line.split() for line in file.readall().splitlines()]
        ticks = sum(int(row[8]) for row in rows if row and row[0] in ours)
        return ticks / os.sysconf("SC_CLK_TCK") / len(ours)
    return 0.0


class _Gpu:
    """A device as NVML sees it, through the driver's own library: no package is needed."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def of(cls, device: torch.device) -> _Gpu | None:
        """None where the driver has no NVML, or does not find the device."""
        with contextlib.suppress(OSError, AttributeError, RuntimeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            handle = ctypes.c_void_p()
            # By its UUID, since CUDA_VISIBLE_DEVICES may have given the devices other numbers.
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
            find = library.nvmlDeviceGetHandleByUUID
            if library.nvmlInit_v2() == 0 and find(uuid, ctypes.byref(handle)) == 0:
                return cls(library, handle)
        return None

    def is_slowed(self) -> bool:
        """Whether it runs below the clock that it would otherwise have."""
        reasons = ctypes.c_ulonglong()
        ask = self._library.nvmlDeviceGetCurrentClocksThrottleReasons
        return ask(self._handle, ctypes.byref(reasons)) == 0 and bool(reasons.value & _SLOWED)

    def clock_mhz(self) -> int | None:
        """Of its multiprocessors."""
        clock = ctypes.c_uint()
        ask = self._library.nvmlDeviceGetClockInfo
        return clock.value if ask(self._handle, 1, ctypes.byref(clock)) == 0 else None
