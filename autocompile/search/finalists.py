"""Measure the best again in fresh processes: the search's own numbers flatter its winner.

The best of 50 settings with 1 % noise looks about 2.2 % better than it is, and a process differs
from the next by more than the noise inside it. So the leaders, the best of each batch size and
default inductor run again in fresh processes, in shuffled order, and only that is reported.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Sequence

from autocompile.config import DEFAULT_INDUCTOR
from autocompile.ranking import Candidate, Limits, candidates, rank, tie_set
from autocompile.record import Record
from autocompile.search.effort import Effort
from autocompile.search.space import Setting
from autocompile.search.study import Budget, Interrupted, PhaseStudy, run_job, to_record

__all__ = ["choose", "confirm"]


def choose(
    records: Sequence[Record], effort: Effort, objective: str, limits: Limits
) -> list[Record]:
    """The trials to repeat: the leaders, the best of each batch size, and default inductor.

    A setting whose whole interval lies below eager has lost already and is not repeated.
    """
    found = [c for c in candidates(records) if not c.record.config.is_eager and c.keeps(limits)]
    promising = [c for c in rank(found, objective) if c.speedup.high > 1]
    chosen: list[Candidate] = []
    if promising:
        size = promising[0].record.batch_size
        same = [c for c in promising if c.record.batch_size == size]
        # The leader, and of those that may equal it the one that costs least to compile.
        order = {c.record.number: c for c in (same[0], tie_set(same[0], same)[0], *same)}
        chosen = list(order.values())[: effort.finalists]
        chosen += [
            c for c in found if c.record.config == DEFAULT_INDUCTOR and c.record.batch_size == size
        ]
        for other in dict.fromkeys(c.record.batch_size for c in promising):
            chosen += [c for c in promising if c.record.batch_size == other][:1]
    return list({c.record.number: c.record for c in chosen}.values())


def confirm(study: PhaseStudy, effort: Effort, limits: Limits, budget: Budget, seed: int) -> None:
    """Repeat the finalists on their own warm caches, each round in another order.

    Rounds that a resumed run has already are not repeated; the first round is never cut short by
    the time budget, since a winner that nobody confirmed is worth little.

    Raises:
        Interrupted: after Ctrl-C.
    """
    finalists = choose(study.records, effort, study.objective, limits)
    done = {
        f.number: sum(
            r.repeats == f.number and r.outcome.value != "interrupted" for r in study.records
        )
        for f in finalists
    }
    missing = sum(effort.processes - min(effort.processes, n) for n in done.values())
    if not missing:
        return
    study.observer.confirming(missing)
    order = random.Random(seed)
    for process in range(effort.processes):
        if process and budget.until is not None and time.monotonic() > budget.until:
            break
        for finalist in order.sample(finalists, len(finalists)):
            if done[finalist.number] > process:
                continue
            missing -= 1
            _repeat(study, finalist, effort, missing)


def _repeat(study: PhaseStudy, finalist: Record, effort: Effort, left: int) -> None:
    number = study.workshop.next_number()
    request = {
        "kind": "trial",
        "phase": finalist.phase,
        "config": finalist.config.to_dict(),
        "batch_size": finalist.batch_size,
        "limits": {**study.limits, "half_width": effort.confirm_half_width},
        "repeats": finalist.number,
    }
    job = study.workshop.job(number, request, cache_of=finalist.number)
    study.observer.started(number, finalist.config, finalist.batch_size, "confirm")
    ending, interrupted = run_job(study.executor, job, study.observer)
    setting = Setting(finalist.config, finalist.batch_size)
    record = to_record(number, finalist.phase, setting, ending)
    record = dataclasses.replace(record, role="confirm", repeats=finalist.number)
    study.workshop.folder.save(record)
    study.records.append(record)
    study.observer.ended(record, left)
    if interrupted:
        raise Interrupted
