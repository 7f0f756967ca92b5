"""Each batch size by itself: the best setting there, and whether it beats eager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autocompile.calm import Calm
from autocompile.preference import rank, some_are_seen
from autocompile.ranking import Candidate, noise_floor
from autocompile.record import Record

__all__ = ["by_batch_size", "elsewhere", "proven"]


def proven(rivals: Sequence[Candidate], tested: bool) -> list[Candidate]:
    """The compiled settings of one batch size whose speed was seen as it is.

    Where others were seen as they are, one that never was proves nothing by being faster; and what
    slows eager down beside it would be faster than anything.

    Args:
        rivals: of one batch size.
        tested: whether settings were measured again: then what was not is not believed.
    """
    seen = [c for c in rivals if not (c.is_unseen and some_are_seen(rivals))]
    return [c for c in seen if not c.slows_eager and (c.confirmed or not tested)]


def by_batch_size(
    allowed: list[Candidate], objective: str, records: list[Record], calm: Mapping[int, Calm]
) -> list[dict[str, Any]]:
    """The RLlib benchmark's table: the best compiled setting of each batch size.

    ``noise_floor`` is that of the batch size. ``proven`` says whether its speed may decide
    anything; one that is comes before those that are not.
    """
    rows = []
    sizes = sorted({c.record.batch_size for c in allowed}, key=lambda s: s or 0)
    tested = any(c.confirmed and not c.record.config.is_baseline for c in allowed)
    for size in sizes:
        here = [c for c in allowed if c.record.batch_size == size]
        compiled = [c for c in here if not c.record.config.is_baseline]
        if not compiled:
            continue
        sure = proven(compiled, tested)
        top = rank(sure or compiled, objective)[0]
        rows.append(
            {
                "batch_size": size,
                "eager_throughput": top.eager_throughput.value,
                "best_throughput": top.throughput.value,
                "speedup": top.speedup.to_dict(),
                "number": top.record.number,
                "confirmed_processes": top.confirmed,
                "proven": bool(sure),
                "noise_floor": noise_floor(records, size, calm),
            }
        )
    return rows


def elsewhere(rows: list[dict[str, Any]]) -> list[str]:
    """Where compiling pays although it does not at the batch size that does most."""
    return [
        f"at batch size {row['batch_size']} trial {row['number']} is faster than eager: "
        f"{row['speedup']['value']:.2f}x; --batch-size {row['batch_size']} decides for that"
        for row in rows
        if row["proven"]
        and row["speedup"]["low"] > 1
        and row["speedup"]["value"] > 1 + row["noise_floor"]
    ]
