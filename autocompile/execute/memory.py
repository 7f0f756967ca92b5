"""What of this machine is free: memory and cores within our cgroups' limits, and others' use."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

# Of a trial on a CPU without its tensors: its own process, and compilers.
_TRIAL_BYTES = 2 * 2**30
_FEW_JOBS = 4


def _groups(controller: str) -> list[Path]:
    """The cgroups (version 2 or 1) that this process is in, each with those around it."""
    found = list[Path]()
    with contextlib.suppress(OSError):
        memberships = [
            m.split(":", 2) for m in Path("/proc/self/cgroup").read_text().splitlines()
        ]
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, place_of_mount, kind, options, *_ = line.split()
            mount = Path(place_of_mount)
            for _, controllers, place in memberships:
                is_second = kind == "cgroup2" and controllers == ""
                is_first = kind == "cgroup" and controller in controllers.split(",")
                if is_second or (is_first and controller in options.split(",")):
                    inside = mount / place.strip().lstrip("/")
                    # A container's mount is its group.
                    own = inside if inside.is_dir() else mount
                    found += [p for p in (own, *own.parents) if p.is_relative_to(mount)]
    return found


def _words(group: Path, *names: str) -> list[str]:
    """What the first of these files holds that there is."""
    for name in names:
        with contextlib.suppress(OSError):
            return (group / name).read_text().split()
    return []


def _number_behind(word: str, words: list[str]) -> int | None:
    return int(words[words.index(word) + 1]) if word in words else None


def oom_kills() -> int:
    """How many processes the OOM killer has ended so far; only differences are meaningful.

    Counts our own cgroup without its children where the kernel reports that, else the machine.
    """
    for group in _groups("memory"):
        words = _words(group, "memory.events.local", "memory.oom_control")
        if (kills := _number_behind("oom_kill", words)) is not None:
            return kills
    return _number_behind("oom_kill", _words(Path("/proc"), "vmstat")) or 0


def available_memory_bytes() -> int:
    """Memory available without swapping."""
    available: int = psutil.virtual_memory().available
    for group in _groups("memory"):
        with contextlib.suppress(ValueError, IndexError):  # no limit, which is "max"
            limit = int(_words(group, "memory.max", "memory.limit_in_bytes")[0])
            used = int(_words(group, "memory.current", "memory.usage_in_bytes")[0])
            cached = _number_behind("inactive_file", _words(group, "memory.stat")) or 0
            available = min(available, limit - used + cached)
    return max(0, available)


def most_memory_bytes() -> int:
    """Memory limit for all trials together: 80 % of what is available."""
    return int(available_memory_bytes() * 0.8)


@dataclass(frozen=True)
class Held:
    """What an eager side of a phase holds, in bytes, as the probe has seen it.

    Attributes:
        parameters: of the model.
        state: of its optimizers; 0 if nothing steps.
        steps: whether a call steps, and so makes gradients.
        gives_back: whether its sides give back memory for one another.
        call: what a call takes beside these at its peak; not known on a CPU.
    """

    parameters: int
    state: int
    steps: bool
    gives_back: bool
    call: int = 0

    @property
    def by_trial(self) -> int:
        """What a trial of the phase takes: by this rule until the first one has ended.

        The copies are counted in ``tests/trial/tasks/test_copies.py``.
        """
        if not self.steps:
            # The target's, which eager shares, the setting's, and those of before new weights.
            copies = 3 * self.parameters
        elif self.gives_back:
            # The target, and on a CPU a kept state and one side with its gradients and those that it
            # is compared with; on a GPU, where the host keeps the state, two sides.
            copies = 5 * self.parameters + 2 * self.state
        else:
            # The target, a kept state, and three sides, whose gradients are copied, too.
            copies = 10 * self.parameters + 4 * self.state
        return copies + 2 * self.call


def trials_at_once(
    phases: Sequence[Held], free_bytes: int | None, context_bytes: int
) -> int:
    """How many trials find memory at once, of the phase that takes most.

    Args:
        free_bytes: of an accelerator; None: of this machine.
        context_bytes: what a process takes of the accelerator before any tensor.
    """
    free = most_memory_bytes() if free_bytes is None else free_bytes
    base = _TRIAL_BYTES if free_bytes is None else context_bytes
    return free // (base + max((each.by_trial for each in phases), default=0))


def usable_cores() -> int:
    """How many cores this process may use, by its affinity and the quotas of its cgroups."""
    cores: float = len(os.sched_getaffinity(0))
    for group in _groups("cpu"):
        first = [
            *_words(group, "cpu.cfs_quota_us"),
            *_words(group, "cpu.cfs_period_us"),
        ]
        with contextlib.suppress(ValueError):  # no quota
            quota, period = map(float, _words(group, "cpu.max") or first)
            if quota > 0:
                cores = min(cores, quota / period)
    return max(1, math.ceil(cores))


def default_jobs() -> int:
    """One job for each core up to four, and from sixteen cores on as many as each has threads.

    A compile uses several cores: sixteen of one thread each would all end late. As far as memory
    allows.
    """
    cores = usable_cores()
    jobs = cores if cores <= _FEW_JOBS else max(_FEW_JOBS, math.isqrt(cores))
    return max(1, min(jobs, available_memory_bytes() // _TRIAL_BYTES))


def busy_cores(for_s: float = 0.25) -> float:
    """How many of the cores that this process may use are at work now."""
    # Waiting for a disk is idle.
    percent: list[float] = psutil.cpu_percent(for_s, percpu=True)
    ours = [percent[core] for core in os.sched_getaffinity(0) if core < len(percent)]
    return round(sum(ours) / 100, 1)


def busy_gpu() -> float:
    """The share of the last moment in which a GPU of this host computed, the most; 0 if unknown."""
    command = [
        "nvidia-smi",
        "--query-gpu=utilization.gpu",
        "--format=csv,noheader,nounits",
    ]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(
            command, capture_output=True, timeout=20, check=True
        ).stdout
        return max(
            (int(word) / 100 for word in told.split() if word.isdigit()), default=0.0
        )
    return 0.0
