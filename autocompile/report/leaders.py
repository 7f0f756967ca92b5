"""The leaderboard of the live screen: the best so far of each phase and batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from autocompile.estimate.intervals import Interval, signed_rank_interval
from autocompile.report import text as show
from autocompile.store.record import Record

__all__ = ["Leader", "leaderboard"]


@dataclass(frozen=True)
class Leader:
    """A line of the live leaderboard; its statistics are computed once, when the trial ends."""

    record: Record
    throughput: Interval
    speedup: Interval

    @classmethod
    def of(cls, record: Record) -> Leader:
        """From a trial that worked."""
        assert record.measurement is not None
        error = signed_rank_interval(record.measurement.compiled_s).half_width
        value = (record.batch_size or 1) / record.measurement.compiled_call_s
        throughput = Interval(value, value * (1 - error), value * (1 + error))
        return cls(record, throughput, record.measurement.speedup)


def leaderboard(leaders: Sequence[Leader], height: int) -> list[Text]:
    """The best so far of each phase and batch size in ``height`` lines, then who follows them."""
    if not leaders or height < 2:
        return []
    ranked = sorted(leaders, key=lambda leader: -leader.speedup.value)
    first: dict[tuple[str, int | None], Leader] = {}
    for leader in ranked:
        first.setdefault((leader.record.phase, leader.record.batch_size), leader)
    order = [first[cell] for cell in sorted(first, key=str)]
    order += [x for x in ranked if x not in order and not x.record.config.is_plain_eager]
    width = max(len(x.record.phase) for x in order)
    titles = (
        f"{'#':>4}  {'phase':<{width}}  {'batch':>5}  {'per second':>14}   against eager    compile"
    )
    lines = [Text(f"{titles}   setting", "dim")]
    for x in order[: height - 1]:
        r, is_first = x.record, x in first.values() and not x.record.config.is_plain_eager
        ratio = show.speedup(1.0) if r.config.is_plain_eager else show.ratio(x.speedup)
        line = f"{r.number:>4}  {r.phase:<{width}}  {show.or_dash(r.batch_size):>5}  "
        line += f"{show.measured(x.throughput):>14}   {ratio:<13}  {show.seconds(r.compile_s):>9}"
        lines.append(Text(f"{line}   {show.label(r.config)}", "bold green" if is_first else ""))
    return lines
