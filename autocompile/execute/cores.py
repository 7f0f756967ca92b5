"""Which cores compile and which time, where there are enough to keep the two apart.

A trial that runs on a GPU needs few cores while it is timed. The others may go on compiling beside
it if they keep to cores of their own and leave the device alone.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["split_cores"]

_ENOUGH = 8
_TOPOLOGY = Path("/sys/devices/system/cpu")


def _siblings(cpu: int) -> set[int]:
    """The logical cores that share a physical one with this, itself among them."""
    try:
        text = (_TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        found = set[int]()
        for part in text.strip().split(","):
            low, _, high = part.partition("-")
            found |= set(range(int(low), int(high or low) + 1))
        return found | {cpu}
    except (OSError, ValueError):
        return {cpu}


def split_cores() -> tuple[list[int], list[int]] | None:
    """Cores to compile on and cores to time on: three quarters and one, physical cores whole.

    Returns:
        None where there are fewer than eight, or where a process cannot be kept to cores.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    ours = os.sched_getaffinity(0)
    if len(ours) < _ENOUGH:
        return None
    timing = set[int]()
    for cpu in sorted(ours):
        if len(timing) >= len(ours) // 4:
            break
        timing |= _siblings(cpu) & ours
    return sorted(ours - timing), sorted(timing)
