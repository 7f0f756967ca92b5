"""The race: finalists, plain torch.compile() and eager mode side by side, in fresh processes.

The best of many single figures is flattered, and a process differs from the next by more than the
noise inside it. So the finalists of each phase and batch size are timed again, in sets of fresh
processes, until the order is clear (:mod:`autocompile.estimate.decision`), and only that is
reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autocompile.estimate.candidates import Candidate, Limits
from autocompile.estimate.decision import SETS, Decision, decide_all, finalists
from autocompile.execute.executor import Ending, Job
from autocompile.protocol.requests import ExportedCode, RaceRequest, Side
from autocompile.protocol.results import RaceResult
from autocompile.search.jobs import Jobs
from autocompile.search.records import side_records
from autocompile.search.study import Interrupted, Study
from autocompile.settings.config import EAGER
from autocompile.store.record import AT_WORK, Outcome

__all__ = ["Cell", "Race", "at_work_in"]

_BLOCK_S, _ROUNDS, _MAX_S = 0.02, 24, 3.0
_SHARE = 0.5  # of the memory of a trial: more than that, and finalists have processes of their own
_SLACK = 0.1  # of the budget, by which a set may be too long

Cell = tuple[str, int | None]


@dataclass
class Race:
    """Confirms the best of each phase and batch size.

    Attributes:
        study: whose finalists are raced.
        limits: what a setting must keep to be chosen.
        own_sizes: of each phase, the user's own batch size, which comes first.
    """

    study: Study
    limits: Limits
    own_sizes: Mapping[str, int | None]
    _alone: set[int] = field(
        default_factory=set
    )  # failed in a shared process: tried again in their own
    _last: set[int] = field(
        default_factory=set
    )  # failed there too: tried again with no other process running
    _given_up: set[Cell] = field(default_factory=set)  # its race failed outside any setting
    _took_s: dict[Cell, float] = field(default_factory=dict)  # of a set, by side

    def needed_s(self) -> float:
        """About how many seconds the sets take that each phase and batch size needs at least."""
        total_s = 0.0
        for cell, decision in self.decisions():
            runners = finalists(decision)
            had = min(map(self._tries, runners), default=SETS[0])
            total_s += max(0, SETS[0] - had) * self.set_s(cell, runners)
        return total_s

    @property
    def left_s(self) -> float:
        """How long a set may take that begins now."""
        return self.study.budget.left_s + _SLACK * (self.study.budget.total_s or 0.0)

    @property
    def is_open(self) -> bool:
        """Whether a decision is still open, so that more sets may follow."""
        return any(decision.open for _, decision in self.decisions())

    def run(self) -> None:
        """Race until every decision is clear or the time is over.

        Raises:
            Interrupted: after Ctrl-C.
        """
        with Jobs(self.study.executor, self.study.observer, self.study.budget.is_over) as jobs:
            while not jobs.interrupted and (chosen := self._next()):
                cell, runners = chosen
                self._set(jobs, cell, runners)
        if jobs.interrupted:
            raise Interrupted

    def decisions(self) -> list[tuple[Cell, Decision]]:
        """Of each phase and batch size, the user's own first."""
        found = []
        for phase in self.study.spaces:
            records = [r for r in self.study.records if r.phase == phase]
            decisions = decide_all(records, self.limits)
            own = self.own_sizes.get(phase)
            order = sorted(decisions, key=lambda size: (size != own, -(size or 0)))
            found += [((phase, size), decisions[size], order.index(size)) for size in order]
        found = [each for each in found if each[0] not in self._given_up]
        return [(cell, decision) for cell, decision, _ in sorted(found, key=lambda each: each[2])]

    def _next(self) -> tuple[Cell, list[Candidate]] | None:
        """The phase and batch size that is raced next, and who runs; None if nothing is open.

        Each gets three tries first; then more go to those whose sets were left out since the host
        was slow, and then to those that are still open.
        """
        left_s = self.left_s
        stages: tuple[Callable[[Candidate, Decision], bool], ...] = (
            lambda c, _: self._tries(c) < SETS[0],
            lambda c, _: c.sets < SETS[0],
            lambda c, decision: bool(decision.open) and c.sets < SETS[1],
        )
        for wants in stages:
            for cell, decision in self.decisions():
                runners = finalists(decision)
                needy = [c for c in runners if wants(c, decision) and self._tries(c) < SETS[1]]
                if not needy:
                    continue
                for most in dict.fromkeys((len(runners), 2, 1)):  # with little time, fewer
                    some = runners[:most]
                    if any(c in needy for c in some) and self.set_s(cell, some) <= left_s:
                        return cell, some
        return None

    def _tries(self, c: Candidate) -> int:
        """In how many sets it was, those left out included."""
        own = {c.record.number, *c.same_code}
        return len({r.race for r in self.study.records if r.repeats in own and r.race is not None})

    def set_s(self, cell: Cell, runners: Sequence[Candidate]) -> float:
        """About how long a set takes: by the last one, or by the trials of the search."""
        if cell in self._took_s:
            return self._took_s[cell] * (1 + len(runners))
        if not runners:
            return 0.0
        steps = ("import", "build", "eager")
        start_s = max(sum(c.record.step_s.get(s, 0.0) for s in steps) for c in runners)
        has_cache = self.study.job_factory.has_cache
        warm_s = sum(
            (0.5 if has_cache(c.record.number) else 1.0) * c.record.step_s.get("compile", 0.0)
            for c in runners
        )
        return start_s + warm_s + _MAX_S

    def _set(self, jobs: Jobs, cell: Cell, runners: Sequence[Candidate]) -> None:
        """One set: a process for those that can share one, and one for each of the others."""
        study, (phase, size) = self.study, cell
        number = 1 + max(
            (r.race or 0 for r in study.records if (r.phase, r.batch_size) == cell), default=0
        )
        groups = self._groups(runners)
        study.observer.racing(phase, size, len(runners), number)
        began = study.budget.spent_s
        waiting, started = list(groups), {}
        while waiting or jobs.size:
            while waiting and jobs.has_room and not (self._last and jobs.size):
                group = waiting.pop(0)
                job = self._job(cell, group, takes_turns=len(groups) > 1)
                started[job.number] = group
                jobs.start(job)
            if not jobs.size:
                return  # Ctrl-C before it began
            job_number, ending = jobs.next()
            self._keep(job_number, cell, number, started[job_number], ending, len(groups) > 1)
        self._took_s[cell] = (study.budget.spent_s - began) / (1 + len(runners))

    def _groups(self, runners: Sequence[Candidate]) -> list[list[Candidate]]:
        """Who shares a process with whom.

        By themselves are those that set something for the whole process, run under another
        interpreter, have failed beside others, or need too much memory together.
        """
        limit = self.study.job_factory.memory_limit_bytes
        needed = sum(c.record.peak_memory_bytes or 0 for c in runners)
        is_large = limit is not None and needed > _SHARE * limit
        shared: list[Candidate] = []
        alone: list[Candidate] = []
        for c in runners:
            config = c.record.config
            is_own = (
                bool(config.process)
                or config.numbers != EAGER
                or config.environment != "default"
                or c.record.number in self._alone
            )
            (alone if is_own or is_large else shared).append(c)
        return [*([shared] if shared else []), *([c] for c in alone)]

    def _job(self, cell: Cell, group: Sequence[Candidate], takes_turns: bool) -> Job:
        request = self.request(cell, group, takes_turns)
        environment = group[0].record.config.environment
        return self.study.job_factory.job(request, environment=environment, alone=not takes_turns)

    def request(
        self,
        cell: Cell,
        group: Sequence[Candidate],
        takes_turns: bool = False,
        exported: ExportedCode | None = None,
    ) -> RaceRequest:
        """What a process is asked to do that times these settings side by side."""
        (phase, size), job_factory = cell, self.study.job_factory
        return RaceRequest(
            header=job_factory.header,
            number=job_factory.next_number(),
            phase=phase,
            sides=tuple(
                Side(
                    number=c.record.number,
                    config=c.record.config,
                    cache=str(self._cache_of(c)),
                    is_warm=job_factory.has_cache(c.record.number),
                    exported=exported,
                )
                for c in group
            ),
            batch_size=size,
            block_s=_BLOCK_S,
            rounds=_ROUNDS,
            max_s=_MAX_S,
            takes_turns=takes_turns,
            calls_per_update=self.study.calls_per_update(phase, size),
        )

    def _cache_of(self, c: Candidate) -> Path:
        """Of a trial that has compiled the same code; one of its own where none is there."""
        job_factory = self.study.job_factory
        numbers = (c.record.number, *c.same_code)
        return job_factory.cache_of(
            next((n for n in numbers if job_factory.has_cache(n)), numbers[0])
        )

    def _keep(
        self,
        job: int,
        cell: Cell,
        number: int,
        group: Sequence[Candidate],
        ending: Ending,
        beside: bool,
    ) -> None:
        """A record of each side that has one, on disk."""
        study = self.study
        by_number = {c.record.number: c.record for c in group}
        at_work = at_work_in(study.job_factory.folder.trial(job) / AT_WORK)
        numbers = iter((job,))
        for record in side_records(by_number, ending, at_work):
            trial = record.repeats or 0
            if not record.ok and (len(group) > 1 or (beside and trial not in self._last)):
                self._alone.add(trial)  # perhaps because of the others
                self._last |= {trial} if len(group) == 1 else set()
                continue
            own = next(numbers, None)
            own = study.job_factory.next_number() if own is None else own
            detail = {**record.detail, "raced_in": job}
            study.keep_raced(dataclasses.replace(record, number=own, race=number, detail=detail))
        study.job_factory.drop_cache(job)
        is_ours = ending.outcome in (Outcome.OK, Outcome.INTERRUPTED)
        is_lost = not is_ours and at_work not in by_number
        if is_lost or (ending.outcome is Outcome.OK and not RaceResult.read(ending.payload).sides):
            study.observer.warning(
                f"a race of {cell[0]} ended with {ending.outcome.value} ({ending.message}): "
                f"log in {study.job_factory.folder.trial(job)}"
            )
            self._given_up.add(cell)  # it has nothing to do with a setting


def at_work_in(path: Path) -> int:
    """The trial whose setting was at work when a process ended; -1 for none."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text("utf-8"))
    return -1
