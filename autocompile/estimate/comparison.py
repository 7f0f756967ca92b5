"""Compares two candidates: how many times faster one is than the other."""

from __future__ import annotations

import math
from statistics import stdev

from autocompile.estimate.candidates import ONE, Candidate, of_sets, whole_call_s
from autocompile.estimate.intervals import Interval, median, over_sets, ratio

__all__ = ["compare"]

_LESS_BY_FAR = 2.0  # two sides that vary independently give 0.7


def compare(first: Candidate, second: Candidate) -> Interval:
    """How many times faster ``first`` is than ``second``.

    Uses blocks of the same rounds if one process ran both, else the speed-ups over eager in common
    sets, else estimates from different processes.
    """
    if first is second:
        return ONE
    if second.record.config.is_baseline:
        return first.speedup
    if first.record.config.is_baseline:
        return ratio(ONE, second.speedup)
    logs = []
    for number in first.logs.keys() & second.logs.keys():
        log = first.logs[number] - second.logs[number]
        if not first.record.refresh_s and not second.record.refresh_s:
            log = _direct(first.blocks.get(number), second.blocks.get(number), log)
        logs.append(log)
    if not logs:
        return _apart(first, second)
    if min(first.sets, second.sets) > 1:
        return over_sets(logs)
    return of_sets(logs, first.searched - second.searched)


def _apart(first: Candidate, second: Candidate) -> Interval:
    """``compare`` for different processes, by speed-ups, in which a slow host cancels.

    Uses seconds of a call instead if those vary far less, because only eager mode varies: on a GPU
    it waits for the CPU, and a replayed graph does not.
    """
    raced = max(first.processes, second.processes, key=len)
    if len(raced) > 1:
        logs, seconds = zip(*raced, strict=True)
        if _LESS_BY_FAR * stdev(map(math.log, seconds)) < stdev(logs):
            return ratio(_calls_per_s(first), _calls_per_s(second))
    return ratio(first.speedup, second.speedup)


def _calls_per_s(c: Candidate) -> Interval:
    """Calls per second, over all race processes, or in the search's one."""
    assert c.record.measurement is not None
    seconds = [s for _, s in c.processes] or [whole_call_s(c.record.measurement, c.record)]
    return over_sets([-math.log(s) for s in seconds])


_Blocks = tuple[int, tuple[float, ...]]


def _direct(first: _Blocks | None, second: _Blocks | None, otherwise: float) -> float:
    if first is None or second is None or first[0] != second[0]:
        return otherwise
    pairs = zip(first[1], second[1], strict=False)
    return median([math.log(theirs / ours) for ours, theirs in pairs])
