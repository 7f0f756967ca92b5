"""Measure the best again in fresh processes: the search's own numbers flatter its winner.

The best of 50 settings with 1 % noise looks about 2.2 % better than it is, and a process differs
from the next by more than the noise inside it. So the leaders, the best of each batch size and
default inductor run again in fresh processes, in shuffled order, and only that is reported.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Collection, Mapping, Sequence

from autocompile.calm import ENOUGH_PROCESSES, Calm, slows_eager
from autocompile.config import DEFAULT_INDUCTOR
from autocompile.preference import rank, some_are_seen, tie_set
from autocompile.ranking import Candidate, Limits, candidates
from autocompile.record import Outcome, Record
from autocompile.search.crew import run_job
from autocompile.search.effort import Effort
from autocompile.search.records import to_record
from autocompile.search.space import Setting
from autocompile.search.study import Budget, Interrupted, PhaseStudy

__all__ = ["choose", "confirm"]

_BLOCK_S, _PATIENCE = 0.03, 3.0
_CHOICES = 5  # how often finalists are chosen anew when one fails or loses its lead
_HIDDEN = 5  # processes that were all disturbed before another setting gets a turn as well
_SPARE = 12  # processes that may be disturbed where another setting's were not: others do rest then
_MOST = 2  # times as many settings as the effort says, where some of them are never calm
_AT_LEAST = ENOUGH_PROCESSES  # for each; who has lost by then, or leads elsewhere, gets no more


def choose(
    records: Sequence[Record],
    calm: Mapping[int, Calm],
    effort: Effort,
    objective: str,
    limits: Limits,
) -> list[Record]:
    """The trials to repeat: the leaders, the best of each batch size, and default inductor.

    A setting whose whole interval lies below eager has lost already and is not repeated; but one
    process, whose interval knows nothing of others, does not undo what the search has seen. Where
    the search has seen nothing, since others kept the cores busy just then, the repeats must tell.

    Args:
        records: of the phase.
        calm: how calm each trial was, by the whole run.
        effort: how many are repeated, and how often.
        objective: ``throughput`` or ``latency``.
        limits: what a setting must keep to be chosen.
    """
    every = candidates(records, calm)
    found = [c for c in every if not c.record.config.is_baseline and c.may_keep(limits)]
    begun = [c for c in found if c.confirmed and _repeats(c.record, records, calm) < _AT_LEAST]
    begun = [c for c in begun if c.record.measurement and c.record.measurement.speedup.high > 1]
    given_up = {c.record.number for c in found if _is_given_up(c, records)}
    order_of_all = _by_lower_bound(found, objective, given_up)
    promising = [c for c in order_of_all if c.speedup.high > 1 or c in begun]
    if not promising:
        return []
    size = promising[0].record.batch_size
    chosen = [
        *_contenders(_of_size(promising, size), begun, effort.finalists),
        *_unseen(_of_size(found, size), calm, effort.finalists),
        *(c for c in _of_size(found, size) if c.record.config == DEFAULT_INDUCTOR),
    ]
    # Eager as well: the noise floor must not hang on one run of one process.
    # Likewise that of another environment: what is there is over it.
    places = {"default", *(c.record.config.environment for c in chosen)}
    eager = [c for c in _of_size(every, size) if c.record.config.is_plain_eager]
    chosen += [c for c in eager if c.record.config.environment in places]
    for other in dict.fromkeys(c.record.batch_size for c in promising):
        chosen += _of_size(promising, other)[:1]
        if other != size:
            chosen += _unseen(_of_size(found, other), calm, 1)
    return list({c.record.number: c.record for c in chosen}.values())


def _contenders(
    same: Sequence[Candidate], begun: Sequence[Candidate], finalists: int
) -> list[Candidate]:
    """Who may be the best of one batch size, of those there, which come best first."""
    # The leader, and of those that may equal it the one that costs least to compile.
    order = {c.record.number: c for c in (same[0], tie_set(same[0], same)[0], *same)}
    chosen = list(order.values())[:finalists]
    # Whoever looked better in the search than the best of those that were confirmed.
    seen = [c.speedup.value for c in same if c.confirmed and not c.is_unseen]
    lead = max(seen, default=math.inf)
    chosen += [c for c in same if not c.confirmed and c.speedup.low > lead]
    had = [c for c in same if c.confirmed and c.record.config != DEFAULT_INDUCTOR]
    room = max(0, _MOST * finalists - len(had))
    new = list(dict.fromkeys(c.record.number for c in chosen if not c.confirmed))
    chosen = [c for c in chosen if c.record.number not in new[room:]]
    return chosen + [c for c in same if c in begun]


def _of_size(found: Sequence[Candidate], size: int | None) -> list[Candidate]:
    return [c for c in found if c.record.batch_size == size]


def _unseen(every: Sequence[Candidate], calm: Mapping[int, Calm], most: int) -> list[Candidate]:
    """Of those whose search trial was disturbed, the ones that may be best of all.

    It goes by the search alone: when these are known, no others take their place.
    """
    seen = [c for c in every if calm.get(c.record.number) is Calm.ENOUGH]
    lead = max((c.searched.low for c in seen), default=0.0)
    hidden = [c for c in every if c not in seen and not slows_eager(c.record)]
    hidden.sort(key=lambda c: -c.searched.high)
    return [c for c in hidden[:most] if c.searched.high > lead]


def _is_given_up(candidate: Candidate, records: Sequence[Record]) -> bool:
    """Whether others get a turn in its place: its processes were all disturbed so far."""
    return candidate.is_unseen and _tries(candidate.record, records) >= _HIDDEN


def _by_lower_bound(
    found: Sequence[Candidate], objective: str, given_up: Collection[int]
) -> list[Candidate]:
    """Best first, those that are confirmed before the others.

    By the lower bound: of many settings the one with the highest value is likely a noisy one.
    Who was given up leads no longer, if others were seen.
    """
    hides = some_are_seen(found)

    def merit(c: Candidate) -> tuple[bool, bool, float]:
        bound = c.speedup.low / c.eager_call_s
        size = (c.record.batch_size or 1) if objective == "throughput" else 1
        is_hidden = hides and c.record.number in given_up
        return not is_hidden, c.confirmed > 0, bound * size

    return sorted(found, key=merit, reverse=True)


def confirm(study: PhaseStudy, effort: Effort, limits: Limits, budget: Budget, seed: int) -> None:
    """Repeat the finalists on their own warm caches, round by round, each in another order.

    Rounds that a resumed run has already are not repeated. When the time budget is spent there is
    still a first round, and two more for those that may be the best and for what they are compared
    with: one process says nothing about how far processes are apart.

    Raises:
        Interrupted: after Ctrl-C.
    """
    order = random.Random(seed)
    for _ in range(_CHOICES + effort.most_processes + _SPARE):
        finalists = choose(study.records, study.calmness(), effort, study.objective, limits)
        jobs = _next_round(finalists, study, effort)
        if not jobs:
            break
        if budget.until is not None and time.monotonic() > budget.until:
            jobs = _overdue(jobs, finalists, study)
            if not jobs:
                return
        study.observer.confirming(len(jobs))
        for left, finalist in enumerate(order.sample(jobs, len(jobs)), 1 - len(jobs)):
            outcome = _repeat(study, finalist, effort, -left)
            if outcome is not Outcome.OK and not finalist.config.is_plain_eager:
                break  # it is no candidate any more: choose again


def _overdue(
    jobs: Sequence[Record], finalists: Sequence[Record], study: PhaseStudy
) -> list[Record]:
    """Those of a round that are measured even after the budget was spent."""
    rivals = [c for c in _rivals(finalists, study) if not c.record.config.is_plain_eager]
    best = rank(rivals, study.objective)[:1]
    contenders = {c.record.number for b in best for c in tie_set(b, rivals)}

    def is_wanted(finalist: Record) -> bool:
        tries, config = _tries(finalist, study.records), finalist.config
        compared = config == DEFAULT_INDUCTOR or config.is_plain_eager
        may_win = finalist.number in contenders
        return not tries or (tries < _AT_LEAST and (compared or may_win))

    return [f for f in jobs if is_wanted(f)]


def _rivals(finalists: Sequence[Record], study: PhaseStudy) -> list[Candidate]:
    """Those of the first one's batch size that were repeated."""
    found = candidates(study.records, study.calmness())
    same = [f for f in finalists if f.batch_size == finalists[0].batch_size]
    return [c for c in found if c.confirmed and c.record in same]


def _next_round(finalists: Sequence[Record], study: PhaseStudy, effort: Effort) -> list[Record]:
    """Who is measured in one more process.

    At first all; then the leader, those that may equal it, and default inductor, since what is
    reported is compared with it; and then who may be the best and is not known well enough.
    """
    if not finalists:
        return []
    calm = study.calmness()
    there = _rivals(finalists, study)
    rivals = {c.record.number: c for c in there if not c.record.config.is_baseline}
    some_calm = some_are_seen(rivals.values())
    contenders = set()
    if rivals:
        best = rank(list(rivals.values()), study.objective)[0]
        contenders = {c.record.number for c in tie_set(best, rivals.values())}

    def goes_on(finalist: Record) -> bool:
        again = [r for r in study.records if r.repeats == finalist.number]
        if sum(map(slows_eager, again)) >= min(_AT_LEAST, effort.processes):
            return False  # that is its own doing: no other process will be calmer
        tries = _tries(finalist, study.records)
        # Where nobody is calm every process counts.
        had = _repeats(finalist, study.records, calm) if some_calm else tries
        if tries - had >= _SPARE:
            return False
        if had < min(_AT_LEAST, effort.processes):
            return True
        if finalist.number not in rivals:
            return False
        may_win = finalist.number in contenders
        if had < effort.processes:
            return may_win or finalist.config == DEFAULT_INDUCTOR
        is_known = rivals[finalist.number].speedup.half_width <= effort.confirm_half_width
        return may_win and not is_known and had < effort.most_processes

    return [f for f in finalists if goes_on(f)]


def _tries(finalist: Record, records: Sequence[Record]) -> int:
    """How often it was repeated."""
    return sum(
        r.repeats == finalist.number and r.outcome is not Outcome.INTERRUPTED for r in records
    )


def _repeats(finalist: Record, records: Sequence[Record], calm: Mapping[int, Calm]) -> int:
    """How often it was repeated with nothing else in the way."""
    return sum(r.repeats == finalist.number and calm.get(r.number) is Calm.ENOUGH for r in records)


def _repeat(study: PhaseStudy, finalist: Record, effort: Effort, left: int) -> Outcome:
    number = study.workshop.next_number()
    request = {
        "kind": "trial",
        "phase": finalist.phase,
        "config": finalist.config.to_dict(),
        "batch_size": finalist.batch_size,
        "limits": {
            **study.limits,
            "half_width": effort.confirm_half_width,
            "block_s": _BLOCK_S,
            "patience": _PATIENCE,
        },
        "repeats": finalist.number,
        "calls_per_update": study.calls_per_update(finalist.batch_size),
    }
    warm = study.workshop.has_cache(finalist.number)
    job = study.workshop.job(
        number,
        request,
        cache_of=finalist.number,
        alone=True,
        environment=finalist.config.environment,
    )
    study.observer.started(number, finalist.config, finalist.batch_size, "confirm")
    ending, interrupted = run_job(study.executor, job, study.observer)
    setting = Setting(finalist.config, finalist.batch_size)
    record = to_record(number, finalist.phase, setting, ending)
    record = dataclasses.replace(record, role="confirm", repeats=finalist.number)
    if not warm:  # a resumed run may have lost it: then this is no warm compile time
        record = dataclasses.replace(record, compile_s=None)
    study.workshop.folder.save(record)
    study.records.append(record)
    study.workshop.learn_pace(record)
    study.observer.ended(record, left)
    if interrupted:
        raise Interrupted
    return record.outcome
