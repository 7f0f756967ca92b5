"""Each batch size by itself: the best setting there, and whether it beats eager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autocompile.calm import Calm
from autocompile.preference import rank
from autocompile.ranking import Candidate, noise_floor
from autocompile.record import Record

__all__ = ["by_batch_size", "elsewhere"]


def by_batch_size(allowed: list[Candidate], objective: str) -> list[dict[str, Any]]:
    """The RLlib benchmark's table: the best compiled setting of each batch size."""
    rows = []
    sizes = sorted({c.record.batch_size for c in allowed}, key=lambda s: s or 0)
    for size in sizes:
        here = [c for c in allowed if c.record.batch_size == size]
        compiled = [c for c in here if not c.record.config.is_baseline]
        if not compiled:
            continue
        top = rank(compiled, objective)[0]
        rows.append(
            {
                "batch_size": size,
                "eager_throughput": top.eager_throughput.value,
                "best_throughput": top.throughput.value,
                "speedup": top.speedup.to_dict(),
                "number": top.record.number,
                "confirmed_processes": top.confirmed,
            }
        )
    return rows


def elsewhere(
    rows: list[dict[str, Any]], records: list[Record], calm: Mapping[int, Calm]
) -> list[str]:
    """Where compiling pays although it does not at the batch size that does most."""
    return [
        f"at batch size {row['batch_size']} trial {row['number']} is faster than eager: "
        f"{row['speedup']['value']:.2f}x; --batch-size {row['batch_size']} decides for that"
        for row in rows
        if row["speedup"]["low"] > 1
        and row["speedup"]["value"] > 1 + noise_floor(records, row["batch_size"], calm)
    ]
