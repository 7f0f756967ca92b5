"""Advice that is not about compile settings, from what the trials recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autocompile.estimate.intervals import median
from autocompile.store.record import Record

__all__ = ["on_memory", "on_recurrent_layers"]

_FAULT_S = 0.5e-6  # a page of 4 KiB costs at least that: the kernel clears it
_MATTERS = 0.05  # of a call
# glibc accepts no higher threshold for blocks of their own, and setting one alone fixes the other.
_KEEP = "MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432"
_RECURRENT = "RNN, GRU, or LSTM"  # torch's words


def on_memory(records: Sequence[Record]) -> list[str]:
    """Advice where calls lose time since the C library returns memory and requests it again.

    Where only some processes do, it is chance: what lies at the end of the heap. Where all do, the
    blocks may be too large to be kept at all.
    """
    timed = [r for r in records if r.duplicate_of is None and r.measurement]
    known = [(r, faults) for r in timed if (faults := _of_eager(r)) is not None]
    hit = [faults for r, faults in known if faults * _FAULT_S > _MATTERS * _call_s(r)]
    if not hit:
        return []
    what = (
        f"in {len(hit)} of {len(known)} processes each eager call gets new memory from the kernel "
        f"({median(hit):.0f} page faults)"
    )
    if len(hit) < len(known):
        why = "this varies by chance and changes the time of a call more than settings do"
        return [f"{what}; {why}. To prevent it, set {_KEEP} (glibc), when tuning and later"]
    return [f"{what}: an allocator that keeps large blocks, such as jemalloc, may save that time"]


def on_recurrent_layers(records: Sequence[Record]) -> list[str]:
    """Advice where Dynamo skipped a layer that it compiles only on request."""
    refused = [r for r in records if any(_RECURRENT in told for told in _told(r))]
    if not refused:
        return []
    return [
        f"Dynamo leaves nn.RNN, nn.GRU and nn.LSTM to eager mode (trial {refused[0].number}). "
        "torch._dynamo.config.allow_rnn = True lets it compile them, which torch calls "
        "experimental: set it in the target's file and in your program, and tune again"
    ]


def _told(record: Record) -> list[str]:
    """What torch said of a trial's graphs."""
    kinds = ("break_reasons", "skip_reasons")
    return [record.message, *(told for kind in kinds for told in record.detail.get(kind, []))]


def _of_eager(record: Record) -> int | None:
    """Page faults of one call of eager: the same code in each process of a batch size."""
    seen: Any = record.detail.get("page_faults")
    first = seen[0] if isinstance(seen, (list, tuple)) and seen else None
    return first if isinstance(first, int) else None


def _call_s(record: Record) -> float:
    assert record.measurement is not None
    return record.measurement.eager_call_s
