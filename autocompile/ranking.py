"""From records to candidates: how fast each setting is, and how sure that is.

Only ratios that were measured inside one process are compared. A setting's throughput is the
eager throughput of its batch size, pooled over all trials, times its speed-up: so the drift of the
machine between two processes cannot decide.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autocompile.calm import ENOUGH_PROCESSES, Calm, calmness, witnesses
from autocompile.record import Outcome, Record
from autocompile.stats import Interval, across_processes, median, ratio

__all__ = [
    "Candidate",
    "Limits",
    "candidates",
    "noise_floor",
    "noise_floors",
    "with_refreshes",
]

_ONE = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Limits:
    """What a setting must keep to be chosen; None: no limit.

    Attributes:
        latency_s: seconds of one call.
        memory_bytes: peak memory.
        compile_s: cold compile time in seconds.
    """

    latency_s: float | None = None
    memory_bytes: int | None = None
    compile_s: float | None = None


@dataclass(frozen=True)
class Candidate:
    """One setting with all that its trials said about it.

    Attributes:
        record: the trial of the study.
        speedup: against eager at the same batch size.
        eager_call_s: seconds of an eager call at this batch size, pooled over the phase.
        searched: the speed-up by the trial of the study alone.
        confirmed: in how many fresh processes it was measured again; those that something
            disturbed count only where there are fewer than three others.
        warm_compile_s: compile time on a warm cache; None if it was never repeated.
        flags: what makes its figures doubtful: those of the repeats, where there are any.
        eager_error: how far ``eager_call_s`` may be off between processes, as a logarithm (95 %).
        calm: ``ENOUGH`` where nothing disturbed its repeats, or two of them; ``SOME`` where some
            rounds of some repeat were calm. Before a repeat it is that of the trial.
    """

    record: Record
    speedup: Interval
    searched: Interval
    eager_call_s: float
    confirmed: int
    warm_compile_s: float | None
    flags: tuple[str, ...] = ()
    eager_error: float = 0.0
    calm: Calm = Calm.ENOUGH

    @property
    def call_s(self) -> float:
        """Seconds of one call."""
        return self.eager_call_s / self.speedup.value

    @property
    def throughput(self) -> Interval:
        """Samples per second, or steps per second where there is no batch."""
        return ratio(self.eager_throughput, ratio(_ONE, self.speedup))

    @property
    def eager_throughput(self) -> Interval:
        """The same of eager."""
        value, factor = (
            (self.record.batch_size or 1) / self.eager_call_s,
            math.exp(self.eager_error),
        )
        return Interval(value, value / factor, value * factor)

    @property
    def refresh_s(self) -> float | None:
        """What new weights cost; None where they cost nothing."""
        return self.record.refresh_s

    @property
    def is_known_to_pay(self) -> bool:
        """Whether it is known how often weights change, where that costs something.

        A plain model's forward pass is taken to be of weights that stay; an agent's change.
        """
        changes = self.record.phase.startswith("forward_")
        return not (self.refresh_s and changes and not self.record.calls_per_update)

    @property
    def slows_eager(self) -> bool:
        """Whether eager was slower beside it than alone, so that its speed-up is not its own."""
        return "eager_slowed" in self.flags

    @property
    def is_unseen(self) -> bool:
        """Whether something was in the way in all its repeats, so that its speed is not known."""
        return self.confirmed > 0 and self.calm is Calm.NONE

    def keeps(self, limits: Limits) -> bool:
        """Whether it is within the limits, and may be recommended."""
        return self._keeps(limits, self.call_s)

    def may_keep(self, limits: Limits) -> bool:
        """Whether repeats may show that it is: something may have slowed it when it was tried."""
        is_known = self.confirmed or self.calm is Calm.ENOUGH
        fastest_s = self.eager_call_s / self.speedup.high
        return self._keeps(limits, self.call_s if is_known else fastest_s)

    def _keeps(self, limits: Limits, call_s: float) -> bool:
        if not self.is_known_to_pay:
            return False
        pairs = (
            (call_s, limits.latency_s),
            (self.record.peak_memory_bytes, limits.memory_bytes),
            (self.record.compile_s, limits.compile_s),
        )
        return all(most is None or seen is None or seen <= most for seen, most in pairs)


def candidates(
    records: Iterable[Record], calm: Mapping[int, Calm] | None = None
) -> list[Candidate]:
    """Every setting of one phase that worked, repeats folded in, duplicates left out.

    A setting that failed even once in a repeat is no candidate: it cannot be relied on. What ended
    a repeat from outside says nothing about it. Of eager the repeats that worked count: all others
    are compared with it.

    Args:
        records: of the phase.
        calm: how calm each trial was, by the whole run; by these records alone if None.
    """
    all_records = list(records)
    repeats: dict[int, list[Record]] = {}
    for record in all_records:
        from_outside = record.outcome in (Outcome.INTERRUPTED, Outcome.INFRASTRUCTURE)
        if record.repeats is not None and not from_outside:
            repeats.setdefault(record.repeats, []).append(record)
    working = [r for r in all_records if r.measurement is not None and r.ok]
    calm = calmness(working) if calm is None else calm
    eager = _Eager(working, calm)
    found = []
    for record in working:
        if record.role != "search" or record.duplicate_of is not None:
            continue
        again = repeats.get(record.number, [])
        if record.config.is_plain_eager:
            again = [r for r in again if r.ok]
        elif not all(r.ok for r in again):
            continue
        measured = again or [record]
        used, how_calm = witnesses(measured, calm)
        heard = used if _are_enough(used, measured) else measured
        warm = [r.compile_s for r in again if r.compile_s is not None]
        found.append(
            Candidate(
                record=record,
                speedup=eager.whole(_speedup(used, measured), record, again),
                searched=eager.whole(_speedup([record], [record]), record, again),
                eager_call_s=eager.of(record, own=True),
                eager_error=eager.error(record),
                confirmed=len(heard) if again else 0,
                warm_compile_s=median(warm) if warm else None,
                flags=_flags_of(heard),
                calm=Calm.ENOUGH if record.config.is_baseline else how_calm,
            )
        )
    return found


def _are_enough(used: Sequence[Record], measured: Sequence[Record]) -> bool:
    """Whether those that count say how far processes are apart."""
    return len(used) >= min(ENOUGH_PROCESSES, len(measured))


def _speedup(used: Sequence[Record], measured: Sequence[Record]) -> Interval:
    """By those that count; where they are few, as uncertain as all of them together."""
    few, every = (
        across_processes([r.measurement.speedup for r in records if r.measurement])
        for records in (used, measured)
    )
    if _are_enough(used, measured):
        return few
    # Of fewer processes the estimate is the more uncertain.
    spread = (every.high / every.low) ** (0.5 * math.sqrt(len(measured) / len(used)))
    low, high = few.value / spread, few.value * spread
    return Interval(few.value, min(low, few.low), max(high, few.high))


def with_refreshes(speedup: Interval, records: Sequence[Record], eager_s: float) -> Interval:
    """The speed-up over all calls from one change of the weights to the next."""
    costs = [r.refresh_s for r in records if r.refresh_s is not None]
    calls = records[0].calls_per_update
    if not costs or not calls:
        return speedup
    share = median(costs) / calls / eager_s
    low, value, high = (1 / (1 / x + share) for x in (speedup.low, speedup.value, speedup.high))
    return Interval(value, low, high)


class _Eager:
    """Seconds of an eager call at each batch size in each environment, pooled over all trials."""

    def __init__(self, working: Iterable[Record], calm: Mapping[int, Calm]) -> None:
        self._calm = calm
        self._records: dict[tuple[str, int | None], list[Record]] = {}
        self._known: dict[tuple[str, int | None], list[float]] = {}
        for record in working:
            if record.duplicate_of is not None:
                continue  # the same process again
            key = record.config.environment, record.batch_size
            self._records.setdefault(key, []).append(record)

    def of(self, record: Record, own: bool = False) -> float:
        """In the record's environment, or in the tuner's own, where it was measured there."""
        return median(self._seconds(self._key(record, own)))

    def error(self, record: Record) -> float:
        """How far the pooled time of the tuner's own environment may be off, as a logarithm."""
        seconds = self._seconds(self._key(record, True))
        spread = across_processes([Interval(s, s, s) for s in seconds])
        return math.log(spread.high / spread.value)

    def whole(self, speedup: Interval, record: Record, again: Sequence[Record]) -> Interval:
        """With what new weights cost, and over the tuner's own eager."""
        if record.config.is_plain_eager:
            # Eager is its own baseline: an A/A run says how noisy it is, not how fast.
            speedup = _ONE
        return self._against_own(record, with_refreshes(speedup, [record, *again], self.of(record)))

    def _against_own(self, record: Record, speedup: Interval) -> Interval:
        """A speed-up over another environment's eager as one over that of the tuner's own.

        Only this is a comparison between processes, so its interval is that of the processes.
        """
        theirs, ours = self._key(record, False), self._key(record, True)
        if theirs == ours:
            return speedup
        pair = [
            across_processes([Interval(s, s, s) for s in self._seconds(key)])
            for key in (theirs, ours)
        ]
        return ratio(speedup, ratio(*pair))

    def _key(self, record: Record, own: bool) -> tuple[str, int | None]:
        ours = "default", record.batch_size
        return ours if own and ours in self._records else (record.config.environment, ours[1])

    def _seconds(self, key: tuple[str, int | None]) -> list[float]:
        if key not in self._known:
            found = _calmest(self._records[key], self._calm)
            self._known[key] = [r.measurement.eager_call_s for r in found if r.measurement]
        return self._known[key]


def _flags_of(heard: Sequence[Record]) -> tuple[str, ...]:
    """What makes any of them doubtful; that eager was slowed beside it, if half of them say so.

    That is a trait of the setting, which shows in every process; in one of five it was chance.
    """
    found = Counter(f for r in heard if r.measurement for f in r.measurement.flags)
    return tuple(f for f, n in found.items() if f != "eager_slowed" or 2 * n >= len(heard))


def _calmest(records: Sequence[Record], calm: Mapping[int, Calm]) -> Sequence[Record]:
    """Those that nothing disturbed; all of them if there is none."""
    return [r for r in records if calm.get(r.number) is Calm.ENOUGH] or records


def noise_floor(
    records: Iterable[Record], batch_size: int | None, calm: Mapping[int, Calm] | None = None
) -> float:
    """How far eager seemed faster or slower than itself, as a fraction: 0.006 is 0.6 %.

    The median over its processes. No smaller speed-up can be claimed at this batch size. 0.0 if
    eager was never measured. ``calm`` is as for :func:`candidates`.
    """
    every = [r for r in records if r.measurement]
    found = [r for r in every if r.config.is_baseline and r.batch_size == batch_size]
    calmest = _calmest(found, calmness(every) if calm is None else calm)
    intervals = [r.measurement.speedup for r in calmest if r.measurement]
    return median([max(i.high - 1, 1 - i.low) for i in intervals]) if intervals else 0.0


def noise_floors(records: Iterable[Record]) -> list[float]:
    """The noise floor of each phase and batch size in which eager was measured just now."""
    eager: dict[tuple[str, int | None], list[Record]] = {}
    for r in records:
        if r.ok and r.config.is_baseline:
            eager.setdefault((r.phase, r.batch_size), []).append(r)
    return [noise_floor(found, size) for (_, size), found in eager.items()]
