"""The figures of one setting as reports hold them, made of its candidate and records.

Every number that a reader of a report sees about a setting is computed here, once, from the
sets of processes that the decision counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autocompile.estimate.candidates import (
    ONE,
    Candidate,
    candidates,
    refreshing_s,
    whole_call_s,
    with_costs,
)
from autocompile.estimate.decision import Decision, compare
from autocompile.estimate.intervals import Interval, over_sets, ratio
from autocompile.settings.config import DEFAULT_INDUCTOR, Setting
from autocompile.settings.phases import phase_of
from autocompile.store.reading import known
from autocompile.store.record import EXPORTED, Outcome, Record
from autocompile.store.report import (
    Best,
    Exported,
    GivenBack,
    Rate,
    Throughput,
    Tried,
)

# Eager mode where freed memory is given back: what is worth a note, as a factor in time and
# as page faults of a call.
_SLOWER, _FAULTS = 1.1, 50


def throughput_of(rate: Interval, record: Record) -> Throughput:
    """An interval of calls handled in a second, with the unit of the record's phase."""
    return Throughput(rate.value, rate.low, rate.high, phase_of(record.phase).unit)


def figures(
    decision: Decision, found: Sequence[Candidate], exported: Sequence[Record]
) -> Best:
    """The figures of a decision's best setting.

    Args:
        found: every candidate at its batch size.
        exported: records of exported code.
    """
    best, record = decision.best, decision.best.record
    plain = next((c for c in found if c.record.config == DEFAULT_INDUCTOR), None)
    is_other = plain not in (None, best) and not record.config.is_baseline
    own = {
        "config": record.config,
        "speedup": best.reported,
        "throughput": throughput_of(best.throughput, record),
        "eager_throughput": Rate(
            value=best.eager_throughput, unit=phase_of(record.phase).unit
        ),
        "call_s": best.call_s,
        "eager_call_s": best.eager_call_s,
        "default_call_s": plain.call_s if plain else None,
        "speedup_against_default": compare(best, plain) if plain and is_other else None,
        "confirmed_processes": best.sets,
        "slow_sets": best.slow_sets,
        "same_code": best.same_code,
        "ties": tuple(c.record.number for c in decision.ties if c is not best),
        "compile_s": 0.0 if record.config.is_eager else record.compile_s,
        "warm_compile_s": 0.0 if record.config.is_eager else best.warm_compile_s,
        "break_even_calls": _calls_to_repay_compiling(best),
        "calls_to_repay_refresh": _calls_to_repay_refresh(best),
        "exported": _exported(best, exported),
        "given_back": _given_back(found),
        "notes": tuple(record.notes),
    }
    return Best(**known(Best, vars(record)) | own)


def every_tried(records: Sequence[Record]) -> tuple[Tried, ...]:
    """What became of each setting at each batch size of a phase, in the order of trials.

    Settings with the same code have the figures of the plainest of them; a failure counts
    before a figure. What came from outside a trial says nothing about its setting, unless
    there is nothing else.
    """
    records = [r for r in records if r.role != EXPORTED]
    by_number: dict[int, Candidate] = {}
    for c in candidates(records):
        by_number.update(dict.fromkeys((c.record.number, *c.same_code), c))
    groups: dict[Setting, list[Record]] = {}
    for record in records:
        if record.outcome is not Outcome.INTERRUPTED:
            groups.setdefault(Setting.of(record), []).append(record)
    found = []
    for setting, mine in groups.items():
        own = [r for r in mine if r.outcome is not Outcome.INFRASTRUCTURE] or mine
        mine_by_number = (by_number.get(r.number) for r in own)
        candidate = next(filter(None, mine_by_number), None)
        failure = next((r for r in own if not r.ok), own[0])
        found.append(_tried(setting, candidate, failure))
    return tuple(found)


def _tried(setting: Setting, candidate: Candidate | None, failure: Record) -> Tried:
    """A setting's figures if it is a candidate; else why it is none."""
    if candidate is None:
        return Tried(
            config=setting.config,
            batch_size=setting.batch_size,
            outcome=failure.outcome,
            message=failure.message,
            compile_s=failure.compile_s,
            graph_breaks=failure.graph_breaks,
        )
    record = candidate.record
    return Tried(
        config=setting.config,
        batch_size=setting.batch_size,
        outcome=Outcome.OK,
        speedup=candidate.reported,
        call_s=candidate.call_s,
        eager_call_s=candidate.eager_call_s,
        compile_s=record.compile_s,
        graph_breaks=record.graph_breaks,
        peak_memory_bytes=record.peak_memory_bytes,
    )


def _calls_of_a_pass(record: Record) -> int:
    """How many calls are timed as one; 1 where a call is timed alone."""
    return sum(kind.calls for kind in record.kinds or ()) or 1


def _calls_to_repay_compiling(best: Candidate) -> int | None:
    """After how many calls the compile time has been saved; None if never."""
    record = best.record
    # Compiling is what is repaid, so that no share of it is a cost of a call.
    saved_s = best.eager_call_s - best.call_s - refreshing_s(record)
    if saved_s <= 0 or record.config.is_eager:
        return None
    return round((record.compile_s or 0.0) / saved_s * _calls_of_a_pass(record))


def _calls_to_repay_refresh(best: Candidate) -> int | None:
    """How many calls with the same weights it takes until constants have paid."""
    record, measured = best.record, best.record.measurement
    if not record.refresh_s or measured is None:
        return None
    saved_s = measured.eager_call_s - measured.compiled_call_s
    if saved_s <= 0:
        return None
    return math.ceil(record.refresh_s / saved_s * _calls_of_a_pass(record))


def _given_back(found: Sequence[Candidate]) -> GivenBack | None:
    """What eager mode loses by page faults where a program's memory is not kept, if it is much."""
    costs = (
        c.record.detail.get("given_back")
        for c in found
        if c.record.config.is_plain_eager
    )
    if (cost := next(filter(None, costs), None)) is None:
        return None
    is_much = cost["times"] > _SLOWER and cost["faults"] > _FAULTS
    return GivenBack.from_dict(cost) if is_much else None


def _exported(best: Candidate, exported: Sequence[Record]) -> Exported | None:
    """How the exported code of a setting ran the last time; None where it did not."""
    mine = [r for r in exported if r.repeats == best.record.number]
    if not mine:
        return None
    record = mine[-1]
    if not record.ok or record.measurement is None:
        return Exported(outcome=record.outcome, message=record.message)
    measured = record.measurement
    over_eager = with_costs(measured.speedup.value, best.record, measured.eager_call_s)
    found = over_sets([math.log(over_eager)])
    has_the_speedup = ratio(found, best.speedup).high >= 1
    # Eager mode may have been faster this time, which lowers the speed-up of the same code.
    now_s = whole_call_s(measured, best.record)
    then_s = best.processes or (now_s,)
    now = over_sets([-math.log(now_s)])
    then = over_sets([-math.log(seconds) for seconds in then_s])
    takes_no_longer = ratio(now, then).high >= 1
    is_slower_than_eager = found.high < ONE.value
    return Exported(
        outcome=record.outcome,
        message=record.message,
        agrees=has_the_speedup or (takes_no_longer and not is_slower_than_eager),
        speedup=found,
    )
