"""Rows of the report that are one trial, or one cause of failure."""

from __future__ import annotations

import re
from typing import Any

from autocompile.estimate.intervals import Interval
from autocompile.record import Outcome, Record

__all__ = ["failures", "number", "trial_row", "unit"]


def number(value: Interval, unit: str) -> dict[str, Any]:
    """An interval with its unit."""
    return {**value.to_dict(), "unit": unit}


def unit(record: Record) -> str:
    """What a phase's throughput counts."""
    return "steps/s" if record.phase == "optimizer_step" else "samples/s"


def failures(records: list[Record], run_dir: str) -> list[dict[str, Any]]:
    """Failures grouped by cause; those answered by another trial count with it.

    ``answered``: all of the group were left untried, since others had shown how they would end.
    """
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for r in records:
        if r.outcome in (Outcome.OK, Outcome.INTERRUPTED):
            continue
        # Of what was not tried the reasons differ by figures only, and the first stands for them.
        untried = r.message.startswith("not tried: ")
        cause = re.sub(r"\d[\d.]*", "", r.message) if untried else r.message
        key = (r.config.backend, r.outcome.value, cause)
        row = groups.setdefault(
            key,
            {
                "count": 0,
                "backend": r.config.backend,
                "outcome": r.outcome.value,
                "step": r.step.value,
                "message": r.message,
                "numbers": [],
                "answered": True,
                "log": _log(r, run_dir),
            },
        )
        row["answered"] = row["answered"] and _is_answered(r)
        row["count"] += 1
        row["numbers"].append(r.number)
    return sorted(groups.values(), key=lambda row: (-row["count"], row["backend"]))


def _is_answered(record: Record) -> bool:
    """Whether it was never tried; an older version told that by its message alone."""
    said = record.wall_s == 0 and record.message.startswith("not tried: ")
    return bool(record.detail.get("answered")) or said


def _log(record: Record, run_dir: str) -> str | None:
    if record.wall_s == 0 or record.duplicate_of is not None:
        return None
    return f"{run_dir}/trials/{record.number:04d}/log.txt"


def trial_row(record: Record, run_dir: str) -> dict[str, Any]:
    """One row of ``trials``."""
    row: dict[str, Any] = {
        "number": record.number,
        "config": record.config.to_dict(),
        "batch_size": record.batch_size,
        "outcome": record.outcome.value,
        "step": record.step.value,
        "message": record.message,
        "role": record.role,
        "repeats": record.repeats,
        "duplicate_of": record.duplicate_of,
        "answered": _is_answered(record),
        "speedup": None,
        "throughput": None,
        "call_s": None,
        "eager_call_s": None,
        "compile_s": record.compile_s,
        "peak_memory_bytes": record.peak_memory_bytes,
        "graph_breaks": record.graph_breaks,
        "graphs": record.graphs,
        "recompiles": record.recompiles,
        "wall_s": record.wall_s,
        "notes": list(record.notes),
        "flags": [],
        "log": _log(record, run_dir),
    }
    if record.ok and record.measurement is not None:
        m = record.measurement
        scale = (record.batch_size or 1) / m.eager_call_s
        row["speedup"] = m.speedup.to_dict()
        row["throughput"] = number(m.speedup.scaled(scale), unit(record))
        row["call_s"], row["eager_call_s"] = m.compiled_call_s, m.eager_call_s
        row["flags"] = list(m.flags)
    return row
