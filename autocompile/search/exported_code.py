"""The last processes of a run: exported code in a fresh interpreter, beside eager mode.

A race times settings as trials apply them; a user runs what an export says. Here the side of the
winner is made by that code, verified and timed; what it gave is kept in a record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from autocompile.estimate.candidates import Candidate
from autocompile.protocol.requests import ExportedCode
from autocompile.search.jobs import Jobs
from autocompile.search.race import Cell, Race, at_work_in
from autocompile.search.records import side_records
from autocompile.search.study import Interrupted
from autocompile.store.record import AT_WORK, EXPORTED, Outcome

__all__ = ["run_exported"]

_START_S = 6.0  # a new interpreter and the imports that a fork does without


def run_exported(race: Race, codes: Mapping[Cell, ExportedCode]) -> None:
    """Run the exported code of each phase, as far as there is time for it.

    Args:
        race: of the run, which is over.
        codes: of a phase at a batch size.

    Raises:
        Interrupted: after Ctrl-C.
    """
    study = race.study
    study.budget.release()
    done = {r.repeats for r in study.records if r.role == EXPORTED}
    winners = {cell: decision.best for cell, decision in race.decisions()}
    with Jobs(study.executor, study.observer, study.budget.is_over) as jobs:
        for cell, exported in codes.items():
            winner = winners.get(cell)
            if winner is None or winner.record.number in done or not winner.sets:
                continue
            if race.set_s(cell, [winner]) + _START_S <= race.left_s and not jobs.interrupted:
                _run(race, jobs, cell, winner, exported)
    if jobs.interrupted:
        raise Interrupted


def _run(race: Race, jobs: Jobs, cell: Cell, winner: Candidate, exported: ExportedCode) -> None:
    job_factory, record = race.study.job_factory, winner.record
    request = race.request(cell, [winner], exported=exported)
    number, environment = request.number, record.config.environment
    jobs.start(job_factory.job(request, fresh=True, alone=True, environment=environment))
    if not jobs.size:
        return  # Ctrl-C before it began
    _, ending = jobs.next()
    job_factory.drop_cache(number)
    at_work = at_work_in(job_factory.folder.trial(number) / AT_WORK)
    for found in side_records({record.number: record}, ending, at_work):
        if found.outcome not in (Outcome.INTERRUPTED, Outcome.INFRASTRUCTURE):
            kept = dataclasses.replace(found, number=number, role=EXPORTED)
            race.study.keep_raced(kept)
