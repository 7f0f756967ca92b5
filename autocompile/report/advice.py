"""Advice that is not about compile settings, from what the trials recorded."""

from __future__ import annotations

from collections.abc import Sequence

from autocompile.estimate.intervals import median
from autocompile.store.record import Record

__all__ = ["advice"]

_FAULT_S = 0.5e-6  # a page of 4 KiB costs at least that: the kernel clears it
_MATTERS = 0.05  # of a call
# glibc accepts no higher threshold for blocks of their own, and setting one alone fixes the other.
_KEEP = "MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432"
_RECURRENT = "RNN, GRU, or LSTM"  # torch's words


def advice(records: Sequence[Record]) -> list[str]:
    """Sentences on memory that calls take anew, and on layers that Dynamo may take."""
    return [*_on_memory(records), *_on_recurrent_layers(records)]


def _on_memory(records: Sequence[Record]) -> list[str]:
    """Where only some processes take memory anew, it is chance: what lies at the end of the heap.

    Where all do, the blocks may be too large to be kept at all.
    """
    known = []  # page faults of an eager call, which is the same code in each process, and its time
    for r in records:
        seen = r.detail.get("page_faults")
        first = seen[0] if isinstance(seen, (list, tuple)) and seen else None
        if r.duplicate_of is None and r.measurement and isinstance(first, int):
            known.append((first, r.measurement.eager_call_s))
    hit = [faults for faults, call_s in known if faults * _FAULT_S > _MATTERS * call_s]
    if not hit:
        return []
    what = (
        f"in {len(hit)} of {len(known)} processes each eager call gets new memory from the kernel "
        f"({median(hit):.0f} page faults)"
    )
    if len(hit) == len(known):
        why = "an allocator that keeps large blocks, such as jemalloc, may save that time"
        return [f"{what}: {why}"]
    why = "this varies by chance and changes the time of a call more than settings do"
    return [f"{what}; {why}. To prevent it, set {_KEEP} (glibc), when tuning and later"]


def _on_recurrent_layers(records: Sequence[Record]) -> list[str]:
    kinds = ("break_reasons", "skip_reasons")
    for r in records:
        told = (r.message, *(reason for kind in kinds for reason in r.detail.get(kind, [])))
        if any(_RECURRENT in text for text in told):
            return [
                f"Dynamo leaves nn.RNN, nn.GRU and nn.LSTM to eager mode (trial {r.number}). "
                "torch._dynamo.config.allow_rnn = True lets it compile them, which torch calls "
                "experimental: set it in the target's file and in your program, and tune again"
            ]
    return []
