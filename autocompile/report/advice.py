"""What would help beside any setting of the compiler, as far as the trials have seen it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autocompile.record import Record
from autocompile.stats import median

__all__ = ["on_memory"]

_FAULT_S = 0.5e-6  # a page of 4 KiB costs at least that: the kernel clears it
_MATTERS = 0.05  # of a call
# glibc accepts no higher threshold for blocks of their own, and setting one alone fixes the other.
_KEEP = "MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432"


def on_memory(records: Sequence[Record]) -> list[str]:
    """Whether calls lose time to memory that the C library gives back and takes again."""
    timed = [r for r in records if r.duplicate_of is None and r.measurement]
    found = [(r, faults) for r in timed if (faults := _worst(r)) is not None]
    hit = [faults for r, faults in found if faults * _FAULT_S > _MATTERS * _call_s(r)]
    if not hit:
        return []
    return [
        f"in {len(hit)} of {len(found)} processes a call got its memory from the kernel anew each "
        f"time ({median(hit):.0f} page faults), in eager, compiled or both: whether that happens "
        f"is chance, and processes differ by it more than by settings. {_KEEP} in the "
        "environment, when tuning and later, ends it (glibc)"
    ]


def _worst(record: Record) -> int | None:
    """Of the two sides, the page faults of one call."""
    seen: Any = record.detail.get("page_faults")
    if not isinstance(seen, (list, tuple)):
        return None
    return max((n for n in seen if isinstance(n, int)), default=None)


def _call_s(record: Record) -> float:
    assert record.measurement is not None
    return record.measurement.eager_call_s
