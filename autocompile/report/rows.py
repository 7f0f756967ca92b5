"""Rows of the report: the best setting, a batch size, one trial, one cause of failure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from autocompile.estimate.candidates import Candidate, whole_call_s, with_refreshes
from autocompile.estimate.decision import Decision, compare
from autocompile.estimate.intervals import over_sets, ratio
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.phases import phase_of
from autocompile.store.record import Outcome, Record

__all__ = ["best_row", "failures", "size_row", "trial_row"]

_OF_A_RECORD = (
    *("number", "batch_size", "message", "role", "repeats", "duplicate_of", "compile_s"),
    *("peak_memory_bytes", "graph_breaks", "graphs", "recompiles", "began", "wall_s"),
)


def failures(records: list[Record], run_dir: str) -> list[dict[str, Any]]:
    """Failures grouped by cause; those answered by another trial count with it.

    ``answered``: none of the group was tried, since other trials told the outcome.
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for r in records:
        if r.outcome not in (Outcome.OK, Outcome.INTERRUPTED):
            # Of what was not tried the reasons differ by figures only: the first stands for them.
            untried = r.message.startswith("not tried: ")
            cause = re.sub(r"\d[\d.]*", "", r.message) if untried else r.message
            groups.setdefault((r.config.backend, r.outcome.value, cause), []).append(r)
    rows = [
        {
            "count": len(group),
            "backend": backend,
            "outcome": outcome,
            "step": group[0].step.value,
            "message": group[0].message,
            "numbers": [r.number for r in group],
            "answered": all(map(_is_answered, group)),
            "log": _log(group[0], run_dir),
        }
        for (backend, outcome, _), group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["count"], row["backend"]))


def _is_answered(record: Record) -> bool:
    """Whether it was never tried; an older version told that by its message alone."""
    said = record.wall_s == 0 and record.message.startswith("not tried: ")
    return bool(record.detail.get("answered")) or said


def _log(record: Record, run_dir: str) -> str | None:
    if record.wall_s == 0 or record.duplicate_of is not None:
        return None
    number = record.detail.get("raced_in", record.number)  # several share a race's process
    return f"{run_dir}/trials/{number:04d}/log.txt"


def trial_row(record: Record, run_dir: str) -> dict[str, Any]:
    """One row of ``trials``."""
    row: dict[str, Any] = {
        **{name: getattr(record, name) for name in _OF_A_RECORD},
        "config": record.config.to_dict(),
        "outcome": record.outcome.value,
        "step": record.step.value,
        "answered": _is_answered(record),
        **dict.fromkeys(("speedup", "throughput", "call_s", "eager_call_s")),
        "notes": list(record.notes),
        "flags": [],
        "log": _log(record, run_dir),
    }
    if record.ok and (m := record.measurement):
        rate = m.speedup.scaled((record.batch_size or 1) / m.eager_call_s)
        row["speedup"] = m.speedup.to_dict()
        row["throughput"] = {**rate.to_dict(), "unit": phase_of(record.phase).unit}
        row["call_s"], row["eager_call_s"] = m.compiled_call_s, m.eager_call_s
        row["flags"] = list(m.flags)
    return row


def size_row(size: int | None, decision: Decision) -> dict[str, Any]:
    """The RLlib benchmark's table: the best setting of a batch size beside eager."""
    raced = [c for c in decision.rivals if c.sets]
    top = decision.best if decision.is_faster else (raced or decision.rivals)[0]
    return {
        "batch_size": size,
        "eager_throughput": top.eager_throughput,
        "best_throughput": top.throughput.value,
        "speedup": top.reported.to_dict(),
        "number": top.record.number,
        "confirmed_processes": top.sets,
        "faster": decision.is_faster,
        "decided": not decision.open and (top.sets > 1 or not decision.is_faster),
    }


def best_row(
    best: Candidate,
    found: Sequence[Candidate],
    records: Sequence[Record],
    exported: Sequence[Record],
) -> dict[str, Any]:
    """The best setting of a phase.

    ``found``: all that worked at its batch size. ``records``: of the phase; ``exported``: those of
    exported code.
    """
    record, unit = best.record, phase_of(best.record.phase).unit
    plain = next((c for c in found if c.record.config == DEFAULT_INDUCTOR), best)
    is_eager, is_default = record.config.is_eager, plain == best or record.config.is_baseline
    saved = best.eager_call_s - best.call_s
    pays = saved > 0 and not is_eager
    return {
        "number": record.number,
        "config": record.config.to_dict(),
        "batch_size": record.batch_size,
        "throughput": {**best.throughput.to_dict(), "unit": unit},
        "eager_throughput": {"value": best.eager_throughput, "unit": unit},
        "eager_call_s": _spread_of_eager(records, record.batch_size),
        "speedup": best.reported.to_dict(),
        "speedup_against_default": None if is_default else compare(best, plain).to_dict(),
        "compile_s": 0.0 if is_eager else record.compile_s,
        "warm_compile_s": 0.0 if is_eager else best.warm_compile_s,
        "peak_memory_bytes": record.peak_memory_bytes,
        "eager_peak_memory_bytes": record.eager_peak_memory_bytes,
        "break_even_calls": round((record.compile_s or 0.0) / saved) if pays else None,
        "refresh_s": record.refresh_s,
        "calls_per_update": record.calls_per_update,
        "calls_to_repay_refresh": _calls_to_repay(best),
        "confirmed_processes": best.sets,
        "exported": _exported(best, exported),
        "same_code": list(best.same_code),
        "slow_sets": best.slow_sets,
        "call_s": best.call_s,
        "weights_live": record.weights_live,
        "notes": list(record.notes),
    }


def _exported(best: Candidate, exported: Sequence[Record]) -> dict[str, Any] | None:
    """How the exported code of the best setting ran in a fresh interpreter; None: it was not run.

    ``speedup`` is of one process. ``agrees``: within its uncertainty it is as fast as confirmed, by
    the speed-up or by the seconds of a call. ``eager_faster``: only by the seconds of a call, since
    eager mode was faster in that process.
    """
    record = next((r for r in reversed(exported) if r.repeats == best.record.number), None)
    if record is None:
        return None
    row: dict[str, Any] = {"outcome": record.outcome.value, "message": record.message}
    if not record.ok or record.measurement is None:
        return {**row, "agrees": False, "eager_faster": False, "speedup": None}
    m = record.measurement
    found = over_sets([math.log(with_refreshes(m.speedup.value, best.record, m.eager_call_s))])
    is_as_fast = ratio(found, best.speedup).high >= 1
    now = whole_call_s(m, best.record)
    then = [s for _, s in best.processes] or [now]
    pace = ratio(over_sets([-math.log(now)]), over_sets([-math.log(s) for s in then]))
    agrees = is_as_fast or (pace.high >= 1 and found.high >= 1)
    row |= {"agrees": agrees, "eager_faster": agrees and not is_as_fast}
    return {**row, "speedup": found.to_dict()}


def _spread_of_eager(records: Sequence[Record], size: int | None) -> list[float]:
    """Least and largest seconds of an eager call over all processes: how steady this machine is."""
    own = [r for r in records if r.batch_size == size and r.config.environment == "default"]
    times = [r.measurement.eager_call_s for r in own if r.measurement and r.duplicate_of is None]
    return [min(times), max(times)] if times else []


def _calls_to_repay(best: Candidate) -> int | None:
    """How many calls with the same weights it takes until constants have paid."""
    measured = best.record.measurement
    if not best.record.refresh_s or measured is None:
        return None
    saved = measured.eager_call_s - measured.compiled_call_s
    return math.ceil(best.record.refresh_s / saved) if saved > 0 else None
