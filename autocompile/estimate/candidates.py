"""Turns records into candidates: each setting of a phase with its speed-up and interval.

If a setting was raced, the sample is its sets of fresh processes; otherwise its one search trial.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from autocompile.estimate.intervals import (
    Interval,
    between_runs,
    median,
    over_sets,
    percentile,
)
from autocompile.estimate.limits import Limits
from autocompile.store.record import EXPORTED, Checks, Measurement, Outcome, Record
from autocompile.store.recorded_calls import PERCENTILES

ONE = Interval(1.0, 1.0, 1.0)  # the speed-up of eager mode
SLOWER = 1.15
"""Largest time of the reference workload, relative to the fastest set of the same race."""


@dataclass(frozen=True)
class Candidate:
    """One setting, or the plainest of several with the same code, with its measurements."""

    record: Record  # its search trial, with what the later checks have found since
    # Over eager in this run, at the same batch size, including what new weights and, with
    # a horizon, compiling cost.
    speedup: Interval
    eager_call_s: float  # of a call at this batch size, over all processes
    logs: Mapping[int, float] = field(default_factory=dict)  # set to log speed-up
    searched: float = 0.0  # log speed-up in the search trial
    # Set to (process, block times in the order of the rounds).
    blocks: Mapping[int, tuple[int, tuple[float, ...]]] = field(default_factory=dict)
    same_code: tuple[int, ...] = ()  # numbers of the other trials with the same code
    warm_compile_s: float | None = None  # on a warm cache; None before a race
    slow_sets: int = 0  # left out because the machine was slower
    tries: int = 0  # sets in which it was, those that are left out or failed included
    # Seconds of a call in every set, also those left out.
    processes: tuple[float, ...] = ()
    # The speed-up of a call alone, without the costs above; None where there are none.
    of_a_call: float | None = None
    # Of a GPU: the standard error of the log of eager mode's time, by all processes of the run. It
    # waits for the host, whose state differs between them; the few sets of a race may not show it.
    eager_apart: float = 0.0

    @property
    def sets(self) -> int:
        """How many sets of fresh processes it was measured in; 0 before a race."""
        return len(self.logs)

    @property
    def is_verified(self) -> bool:
        """Whether it has passed all checks; eager mode is what others are compared with."""
        return self.record.config.is_baseline or self.record.checks is Checks.ALL

    @property
    def call_s(self) -> float:
        """Seconds of a call alone, as a program waits for it: no costs are shared out."""
        return self.eager_call_s / (self.of_a_call or self.speedup.value)

    @property
    def compile_s(self) -> float:
        """Seconds to compile on a cold cache; eager mode compiles nothing."""
        is_eager = self.record.config.is_eager
        return 0.0 if is_eager else self.record.compile_s or 0.0

    @property
    def reported(self) -> Interval:
        """The speed-up as a user reads it: of other days, too. Eager is 1 exactly."""
        if self.record.config.is_baseline:
            return ONE
        return between_runs(self.speedup, self.eager_apart)

    @property
    def least_gain(self) -> float:
        """How many times as fast as eager mode it surely is, whatever the day."""
        return between_runs(self.speedup, only_order=True).low

    @property
    def throughput(self) -> Interval:
        """Samples per second, or steps per second without a batch."""
        return self.reported.scaled(self.eager_throughput)

    @property
    def eager_throughput(self) -> float:
        return self.record.samples / self.eager_call_s

    def latency_s(self, percent: int) -> float:
        """Seconds that ``percent`` % of the calls do not exceed.

        Of calls of several shapes, those of the search trial, each shape at its median.
        """
        kinds, measured = self.record.kinds, self.record.measurement
        if not kinds:  # a call alone waits for the host and for the GPU
            return max(self.call_s, (measured and measured.pass_s) or 0.0)
        return percentile(((kind.call_s, kind.calls) for kind in kinds), percent)

    @property
    def slows_eager(self) -> bool:
        """Whether eager ran slower next to it than alone, which makes its speed-up too high."""
        measured = self.record.measurement
        return measured is not None and "eager_slowed" in measured.flags

    def against(self, limits: Limits) -> list[Bound]:
        """What the limits are about, as it is here."""
        record = self.record
        is_eager = record.config.is_eager
        compile_s = 0.0 if is_eager else record.compile_s
        bounds = [
            Bound("--max-latency", self.latency_s(100), limits.latency_s),
            Bound("--max-memory", record.peak_memory_bytes, limits.memory_bytes),
            Bound("--max-compile-time", compile_s, limits.compile_s),
        ]
        for name, most in limits.percentiles.items():
            seen = self.latency_s(PERCENTILES[name])
            bounds.append(Bound(f"--max-latency {name}", seen, most))
        return [bound for bound in bounds if bound.most is not None]

    def keeps(self, limits: Limits) -> bool:
        """Whether it may be chosen: within the limits, and known to pay."""
        is_within = all(bound.is_kept for bound in self.against(limits))
        return is_within and self.record.is_known_to_pay


@dataclass(frozen=True)
class Bound:
    """A limit beside what a setting reaches, in seconds or bytes."""

    option: str
    seen: float | None  # None: not known, which does not keep it
    most: float | None

    @property
    def is_kept(self) -> bool:
        if self.most is None:
            return True
        return self.seen is not None and self.seen <= self.most


def candidates(records: Iterable[Record]) -> list[Candidate]:
    """The settings of one phase that worked; of several with the same code, the plainest.

    A setting that failed once in a race is not a candidate, unless the cause was outside it.
    """
    every = [r for r in records if r.role != EXPORTED]
    raced: dict[int | None, list[Record]] = defaultdict(list)
    for r in every:
        if r.outcome not in (Outcome.INTERRUPTED, Outcome.INFRASTRUCTURE):
            raced[r.repeats].append(r)
    working = [r for r in every if r.ok]
    eager = _Eager(working)
    found = []
    for members in _same_code([r for r in working if r.role == "search"]):
        again = [r for m in members for r in raced[m.number]]
        if members[0].config.is_baseline:
            again = [r for r in again if r.ok]
        if all(r.ok for r in again):
            numbers = {m.number for m in members}
            sets = {r.race for r in every if r.repeats in numbers} - {None}
            found.append(
                dataclasses.replace(_candidate(members, again, eager), tries=len(sets))
            )
    return found


def _same_code(searched: Sequence[Record]) -> list[list[Record]]:
    """Trials grouped by their compiled code, the plainest of each group first."""
    groups: dict[int, list[Record]] = defaultdict(list)
    for r in searched:
        groups[r.number if r.duplicate_of is None else r.duplicate_of].append(r)
    return [
        sorted(g, key=lambda r: (r.config.changes(), r.number)) for g in groups.values()
    ]


def _candidate(
    members: Sequence[Record], again: Sequence[Record], eager: _Eager
) -> Candidate:
    record = _with_later_checks(members, again)
    logs, blocks, processes, slow = {}, {}, [], left_out(again)
    alone = []  # log speed-ups of calls, without costs
    for r in again:
        if r.measurement is None:
            continue
        processes.append(whole_call_s(r.measurement, record))
        if r.race is not None and r.race not in slow:
            over = eager.over_default(r, r.measurement)
            alone.append(math.log(over))
            logs[r.race] = math.log(with_costs(over, record, eager.of_process(r)))
            blocks[r.race] = r.process, r.measurement.compiled_s
    speedup = _of_search(record, eager)
    searched = math.log(speedup.value)
    if record.config.is_baseline:
        speedup, searched = ONE, 0.0
        logs = dict.fromkeys(logs, 0.0)  # it is the baseline itself
    elif logs:
        speedup = of_sets(list(logs.values()), searched)
    warm = [r.compile_s for r in again if r.compile_s is not None]
    of_a_call = None
    if extra_s(record) and not record.config.is_baseline:
        assert record.measurement is not None
        searched_alone = math.log(eager.over_default(record, record.measurement))
        of_a_call = math.exp(fmean(alone or [searched_alone]))
    return Candidate(
        record=record,
        speedup=speedup,
        eager_call_s=eager.seconds(record) if logs else eager.of_process(record),
        logs=logs,
        searched=searched,
        blocks=blocks,
        same_code=tuple(m.number for m in members[1:]),
        warm_compile_s=median(warm) if warm else None,
        slow_sets=len(slow),
        processes=tuple(processes),
        of_a_call=of_a_call,
        eager_apart=eager.apart(record) / math.sqrt(len(logs) or 1),
    )


def _with_later_checks(members: Sequence[Record], again: Sequence[Record]) -> Record:
    """The first of trials with the same code, with what the later checks of any have found."""
    first = members[0]
    refresh_s = next((r.refresh_s for r in (*again, *members) if r.refresh_s), None)
    if first.checks is Checks.ALL:
        return dataclasses.replace(first, refresh_s=refresh_s)
    passed = [r for r in (*again, *members) if r.checks is Checks.ALL]
    if not passed:
        # Until new weights were loaded: Inductor compiles again for them. Other backends make a
        # session anew, which takes a small part of their compile.
        expected_s = first.compile_s if first.config.freezing else None
        return dataclasses.replace(first, refresh_s=refresh_s or expected_s)
    live = (r.weights_live for r in passed if r.weights_live is not None)
    notes = (note for r in (first, *passed[:1]) for note in r.notes)
    return dataclasses.replace(
        first,
        checks=Checks.ALL,
        refresh_s=refresh_s,
        weights_live=next(live, None),
        notes=list(dict.fromkeys(notes)),
    )


def left_out(raced: Sequence[Record]) -> set[int]:
    """The sets in which the host was slower than in the fastest one, even if those are most.

    A virtual machine shares its cores: contention makes the same work up to 1.5 times slower for
    seconds or minutes, eager mode and compiled code by different factors. It is detected by a
    reference workload next to each measurement, never by the ratio, which would select the result.
    Counting slow sets makes errors of up to 15 % (replayed on recorded rounds; studies/truth).
    """
    seconds = {
        r.race: s
        for r in raced
        if r.race is not None and (s := r.reference_s) is not None and s > 0
    }
    limit = SLOWER * min(seconds.values(), default=0.0)
    return {race for race, s in seconds.items() if s > limit}


def extra_s(record: Record) -> float:
    """Seconds of a call for what does not happen in each: new weights, and compiling.

    Compiling counts where it is known for how many calls a program lives.
    """
    compile_s, passes = record.compile_s or 0.0, record.horizon
    return refreshing_s(record) + (compile_s / passes if passes else 0.0)


def refreshing_s(record: Record) -> float:
    """The share of a call in what a change of constant weights costs."""
    refresh_s, calls = record.refresh_s, record.calls_per_update
    a_pass = sum(kind.calls for kind in record.kinds or ()) or 1  # is what is measured
    return refresh_s * a_pass / calls if refresh_s and calls else 0.0


def whole_call_s(measured: Measurement, record: Record) -> float:
    """Seconds of a call, including :func:`extra_s`."""
    return measured.compiled_call_s + extra_s(record)


def _of_search(record: Record, eager: _Eager) -> Interval:
    """The speed-up by the search trial, as uncertain as one process or as its own rounds.

    If eager was faster in this process than in others, the upper end rises by that factor: on a
    GPU, eager mode depends on the CPU, and a replayed graph does not.
    """
    assert record.measurement is not None
    inside, outside = record.measurement.speedup, over_sets([0.0])
    over = eager.over_default(record, record.measurement)
    own_s, usual_s = eager.of_process(record), eager.seconds(record)
    value = with_costs(over, record, own_s)
    most = with_costs(over * usual_s / own_s, record, usual_s)
    return Interval(
        value,
        value * min(inside.low / inside.value, outside.low),
        max(value, most) * max(inside.high / inside.value, outside.high),
    )


def with_costs(speedup: float, record: Record, eager_s: float) -> float:
    """The speed-up including :func:`extra_s`."""
    extra = extra_s(record)
    return 1 / (1 / speedup + extra / eager_s) if extra else speedup


def of_sets(logs: list[float], searched: float) -> Interval:
    """``over_sets``; a single set is less certain where the search's process contradicts it.

    One process may be slow from its start to its end.
    """
    found = over_sets(logs)
    if len(logs) > 1:
        return found
    both = over_sets([*logs, searched])
    return Interval(found.value, min(found.low, both.low), max(found.high, both.high))


class _Eager:
    """Seconds of eager calls, of all processes and of each race, by environment and batch size."""

    def __init__(self, working: Iterable[Record]) -> None:
        # To the process: the sides of a race share the blocks of one.
        self._times: dict[tuple[str, int | None, int | None], dict[int, float]] = (
            defaultdict(dict)
        )
        for r in working:
            if (
                r.duplicate_of is None and r.measurement is not None
            ):  # others have another's
                for race in {r.race, None}:
                    key = r.config.environment, r.batch_size, race
                    self._times[key][r.process] = r.measurement.eager_call_s

    def seconds(self, record: Record) -> float:
        """Median over all processes, of the default environment if it was measured there."""
        assert record.measurement is not None
        size = record.batch_size
        found = self._times["default", size, None]
        found = found or self._times[record.config.environment, size, None]
        if not found:
            return record.measurement.eager_call_s
        return median([*found.values()])

    def apart(self, record: Record) -> float:
        """How far the processes of a GPU are apart: the standard deviation of the log of seconds."""
        found = self._times[record.config.environment, record.batch_size, None]
        if record.device == "cpu" or len(found) < 2:
            return 0.0
        return stdev(map(math.log, found.values()))

    def of_process(self, record: Record) -> float:
        """In the record's own process; :meth:`seconds` if that used another environment."""
        if record.config.environment != "default" or record.measurement is None:
            return self.seconds(record)
        return record.measurement.eager_call_s

    def over_default(self, record: Record, measured: Measurement) -> float:
        """The record's speed-up over eager mode of the default environment.

        For another environment, scaled by the eager times of both, of the same set if possible.
        """
        environment, size = record.config.environment, record.batch_size
        for race in (record.race, None) if environment != "default" else ():
            ours = self._times["default", size, race]
            theirs = self._times[environment, size, race]
            if ours and theirs:
                eager_s, own_s = median([*ours.values()]), median([*theirs.values()])
                return measured.speedup.value * eager_s / own_s
        return measured.speedup.value
