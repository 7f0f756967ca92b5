"""From records to the report: every function here tells one thing of a run.

What is best and how sure that is comes from :mod:`autocompile.estimate.answer`; nothing is
decided here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autocompile.estimate.answer import Outlook, State, answers
from autocompile.estimate.candidates import Candidate, candidates
from autocompile.estimate.decision import as_calls_grow
from autocompile.estimate.figures import every_tried, throughput_of
from autocompile.estimate.intervals import percentile
from autocompile.estimate.limits import Limits
from autocompile.report import text as show
from autocompile.report.explain import obstacles, why
from autocompile.settings.config import CompileConfig
from autocompile.settings.option import Kept
from autocompile.settings.phases import phase_of
from autocompile.store.reading import known
from autocompile.store.record import EXPORTED, CallKind, Outcome, Record
from autocompile.store.recorded_calls import PERCENTILES, workload_of
from autocompile.store.report import (
    Answer,
    Failures,
    FromCalls,
    OfRanks,
    OtherNumbers,
    Percentile,
    PhaseResult,
    Report,
    Target,
    Trial,
    Workload,
    leading_size,
)
from autocompile.store.resuming import resuming
from autocompile.store.run import Run, Searched

_GOING_ON_S = 300.0  # budget of the command that goes on with a run


def build_report(run: Run, records: Sequence[Record], run_dir: str) -> Report:
    """The report without its exports, of a run and its trials."""
    state: State = "over"
    if run.interrupted or run.running:
        state = "running" if run.running else "stopped"
    phases = {}
    for name in run.phases:
        mine = [r for r in records if r.phase == name]
        phases[name] = _Phase(name, mine, run, run_dir, state).result()
    request = run.request
    return Report(
        target=Target(**known(Target, {**run.target, "spec": request.target})),
        environment=run.environment,
        environments=run.environments,
        run_dir=run_dir,
        interrupted=run.interrupted,
        running=run.running,
        effort=request.effort,
        objective=request.objective,
        seed=request.seed,
        tolerance=request.tolerance,
        wall_s=run.wall_s,
        phases=phases,
        decided_by=request.kept(Kept.VERIFY),
    )


def batch_size_of(phase: str, run: Run, records: Sequence[Record]) -> int | None:
    """The batch size that a phase's answer is about, as it was settled before the search.

    Of a run that did not keep it, by the same rule and the sizes that were tried.
    """
    if phase in run.batch_sizes:
        return run.batch_sizes[phase]
    own = (run.target.get("own_batch_size") or {}).get(phase)
    sizes = [r.batch_size for r in records if r.phase == phase]
    return leading_size(own, sizes, run.request.objective)


@dataclass(frozen=True)
class _Phase:
    """One phase of a run: what a report says of it."""

    name: str
    records: Sequence[Record]  # of the phase, exported code included
    run: Run
    run_dir: str
    state: State

    def result(self) -> PhaseResult:
        """All of it."""
        size = batch_size_of(self.name, self.run, self.records)
        searched = self.run.spaces.get(self.name, Searched())
        outlook = self._outlook(searched)
        leading, *others = answers(
            size, self.records, self.run.request.limits, outlook
        ).values()
        found = candidates(self._measured)
        here = [c for c in found if c.record.batch_size == size]
        number = leading.best.number if leading.best else None
        best = next((c for c in here if c.record.number == number), None)
        tried = self._tried()
        return PhaseResult(
            answer=leading,
            other_sizes=tuple(others),
            role=phase_of(self.name).role,
            explanation=tuple(why(best, leading.verdict, found, self._device)),
            failures=tuple(_failures(self._measured, self.run_dir)),
            unusable=searched.unusable,
            dropped=searched.dropped,
            notes=tuple(self._notes(leading, searched, found)),
            tried=len(tried),
            listed=searched.configs,
            compiled_tried=sum(not config.is_eager for config in tried),
            compiled_listed=searched.compiled,
            workload=self._workload(best),
            horizon=self.run.request.horizon,
            as_calls_grow=tuple(self._as_calls_grow(here)),
            calls=_kinds(best),
            other_numbers=tuple(self._other_numbers()),
            ranks=self._ranks(best),
            settings=every_tried(self.records),
            trials=tuple(_trial(r, self.run_dir) for r in self._measured),
        )

    @property
    def _measured(self) -> list[Record]:
        """Records of the search and the races."""
        return [r for r in self.records if r.role != EXPORTED]

    @property
    def _device(self) -> str:
        return str(self.run.environment.get("device", ""))

    def _other_numbers(self) -> Iterator[OtherNumbers]:
        """What lower precision would bring; nothing where it was asked for."""
        space = self.run.request.space
        if space.precision or space.autocast:
            return
        found = self.run.target.get("other_numbers") or {}
        for each in found.get(self.name, ()):
            yield OtherNumbers(**each)

    def _ranks(self, best: Candidate | None) -> OfRanks | None:
        """The processes of a step, and what one of them reaches by itself."""
        request = self.run.request
        if request.ranks == 1:
            return None
        size = best.record.batch_size if best else None
        known = (r.alone_s for r in self._measured if r.batch_size == size)
        alone_s = next(filter(None, known), None)
        scaling = None
        if best and alone_s:
            one_rate = best.record.samples / best.record.ranks / alone_s
            scaling = best.eager_throughput / one_rate
        return OfRanks(
            count=request.ranks,
            strategy=request.strategy,
            alone_s=alone_s,
            scaling=scaling,
        )

    def _outlook(self, searched: Searched) -> Outlook:
        """What may still come of the phase, and the commands that would bring it."""
        calls = workload_of(self.name, self.run.target).get("calls", 0)
        if self.state == "running":
            return Outlook(searched=searched, state=self.state, calls=calls)
        had_s = self.run.request.total_s or 0.0
        return Outlook(
            searched=searched,
            state=self.state,
            command=self._going_on(_GOING_ON_S),
            longer=self._going_on(max(_GOING_ON_S, 2 * had_s)),
            wall_s=self.run.wall_s,
            spent_trials=self.run.spent_trials,
            calls=calls,
        )

    def _going_on(self, budget_s: float) -> str:
        budget = f"{math.ceil(budget_s / 60)}m"
        return resuming(self.run, self.run_dir, "--budget", budget)

    def _tried(self) -> set[CompileConfig]:
        """Settings that had a process and have ended, at any batch size."""
        return {
            r.config
            for r in self._measured
            if r.role == "search"
            and r.wall_s > 0
            and r.outcome is not Outcome.INTERRUPTED
        }

    def _workload(self, best: Candidate | None) -> Workload | None:
        about = workload_of(self.name, self.run.target)
        if not about:
            return None
        return Workload(
            calls=about["calls"],
            kinds=about["kinds"],
            percentiles=_percentiles(_kinds(best)),
        )

    def _as_calls_grow(self, here: Sequence[Candidate]) -> Iterator[FromCalls]:
        """The best setting by how many calls a program makes, where that is asked."""
        if not self.run.request.horizon:
            return
        a_pass = workload_of(self.name, self.run.target).get("calls", 1)
        for c, passes in as_calls_grow(here, self.run.request.limits):
            yield FromCalls(
                number=c.record.number,
                config=c.record.config,
                calls=math.ceil(passes * a_pass),
            )

    def _notes(
        self, leading: Answer, searched: Searched, found: Sequence[Candidate]
    ) -> Iterator[str]:
        """What concerns the whole phase, without what is said of its best setting."""
        notes = [
            *_stopped(self._measured),
            *(
                f"{left} is the same as {kept}"
                for left, kept in searched.merged.items()
            ),
            *_left_aside(found, self.run.request.limits),
            *_said_by_all(found),
            *obstacles(self._measured, self._device),
        ]
        said = leading.best.notes if leading.best else ()
        yield from (note for note in notes if note not in said)


def _kinds(best: Candidate | None) -> tuple[CallKind, ...]:
    """The calls of the best setting by shape; of a workload only."""
    return tuple(best.record.kinds or ()) if best else ()


def _percentiles(kinds: Sequence[CallKind]) -> tuple[Percentile, ...]:
    if not kinds:
        return ()
    eager = [(kind.eager_s, kind.calls) for kind in kinds]
    best = [(kind.call_s, kind.calls) for kind in kinds]
    return tuple(
        Percentile(percent=p, eager_s=percentile(eager, p), call_s=percentile(best, p))
        for p in PERCENTILES.values()
    )


# --- notes --------------------------------------------------------------------------------------


def _stopped(records: Sequence[Record]) -> Iterator[str]:
    searched = [r for r in records if r.role == "search"]
    count = sum(r.outcome is Outcome.INTERRUPTED for r in searched)
    if count:
        was = "was" if count == 1 else "were"
        trials = show.many(count, "trial")
        yield f"{trials} {was} stopped before the end: --resume tries again"


def _left_aside(found: Sequence[Candidate], limits: Limits) -> Iterator[str]:
    """How many settings that work may not be chosen, and why."""
    unknown = sum(not c.record.is_known_to_pay for c in found)
    if unknown:
        yield (
            f"{unknown} settings take the weights as constants and are not recommended, since "
            "nobody has said how often they change (--calls-per-update)"
        )
    allowed = sum(c.keeps(limits) for c in found)
    if outside := len(found) - allowed - unknown:
        yield f"outside the limits: {show.many(outside, 'setting')}"


def _said_by_all(found: Sequence[Candidate]) -> list[str]:
    """Notes that every trial has, which are said once."""
    notes = [set(c.record.notes) for c in found if not c.record.config.is_plain_eager]
    return sorted(set.intersection(*notes)) if notes else []


# --- rows ---------------------------------------------------------------------------------------


def _failures(records: Sequence[Record], run_dir: str) -> list[Failures]:
    """Failures grouped by cause; those answered by another trial count with it."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for r in records:
        if r.outcome not in (Outcome.OK, Outcome.INTERRUPTED):
            cause = r.config.backend, r.outcome.value, r.message
            groups.setdefault(cause, []).append(r)
    rows = [
        Failures(
            count=len(group),
            backend=backend,
            outcome=group[0].outcome,
            step=group[0].step,
            message=group[0].message,
            numbers=tuple(r.number for r in group),
            answered=all(map(_is_answered, group)),
            log=_log(group[0], run_dir),
        )
        for (backend, *_), group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.count, row.backend))


def _is_answered(record: Record) -> bool:
    """Whether it was never tried, since other trials told the outcome."""
    return record.answered


def _log(record: Record, run_dir: str) -> str | None:
    if record.wall_s == 0 or record.duplicate_of is not None:
        return None
    return f"{run_dir}/trials/{record.process:04d}/log.txt"


def _trial(record: Record, run_dir: str) -> Trial:
    own = known(Trial, vars(record)) | {
        "began": record.began,
        "answered": _is_answered(record),
        "notes": tuple(record.notes),
        "log": _log(record, run_dir),
    }
    if record.ok and (m := record.measurement):
        rate = m.speedup.scaled(record.samples / m.eager_call_s)
        own |= {
            "speedup": m.speedup,
            "throughput": throughput_of(rate, record),
            "call_s": m.compiled_call_s,
            "eager_call_s": m.eager_call_s,
            "flags": tuple(m.flags),
        }
    return Trial(**own)
