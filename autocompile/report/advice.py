"""Advice that is not about compile settings, from what the trials recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autocompile.estimate.intervals import median
from autocompile.store.record import Record

__all__ = ["advice"]

_FAULT_S = 0.5e-6  # a page of 4 KiB costs at least that: the kernel clears it
_MATTERS = 0.05  # of a call
# glibc accepts no higher threshold for blocks of their own, and setting one alone fixes the other.
_KEEP = "MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432"
_RECURRENT = "RNN, GRU, or LSTM"  # torch's words


def advice(records: Sequence[Record]) -> Iterator[str]:
    """Sentences on memory that calls take anew, and on layers that Dynamo may take."""
    known = []  # page faults of an eager call, which is the same code in each process, and its time
    for r in records:
        match r.page_faults:
            case [int(first), *_] if r.duplicate_of is None and r.measurement:
                known.append((first, r.measurement.eager_call_s))
    if hit := [faults for faults, call_s in known if faults * _FAULT_S > _MATTERS * call_s]:
        what = (
            f"in {len(hit)} of {len(known)} processes each eager call gets new memory from the "
            f"kernel ({median(hit):.0f} page faults)"
        )
        if len(hit) == len(known):  # the blocks may be too large to be kept at all
            why = "an allocator that keeps large blocks, such as jemalloc, may save that time"
            yield f"{what}: {why}"
        else:  # by chance: what lies at the end of the heap
            why = "this varies by chance and changes the time of a call more than settings do"
            yield f"{what}; {why}. To prevent it, set {_KEEP} (glibc), when tuning and later"
    for r in records:
        reasons = (*r.detail.get("break_reasons", ()), *r.detail.get("skip_reasons", ()))
        if any(_RECURRENT in text for text in (r.message, *reasons)):
            yield (
                f"Dynamo leaves nn.RNN, nn.GRU and nn.LSTM to eager mode (trial {r.number}). "
                "torch._dynamo.config.allow_rnn = True lets it compile them, which torch calls "
                "experimental: set it in the target's file and in your program, and tune again"
            )
            return
