"""From records to the report."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from autocompile.estimate.candidates import (
    Candidate,
    candidates,
    extra_s,
    whole_call_s,
    with_costs,
)
from autocompile.estimate.decision import (
    SETS,
    ZONE,
    Decision,
    as_calls_grow,
    compare,
    decide_all,
)
from autocompile.estimate.intervals import Interval, over_sets, percentile, ratio
from autocompile.estimate.limits import Limits
from autocompile.report import text as show
from autocompile.report.explain import obstacles, why
from autocompile.request import kept_in
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.option import Kept
from autocompile.settings.phases import phase_of
from autocompile.store.calls import PERCENTILES, workload_of
from autocompile.store.reading import known
from autocompile.store.record import EXPORTED, CallKind, Outcome, Record
from autocompile.store.report import (
    NOT_TRIED,
    Best,
    Confidence,
    Exported,
    Failures,
    FromCalls,
    Percentile,
    PhaseResult,
    Rate,
    Report,
    SizeRow,
    Target,
    Throughput,
    Trial,
    Unit,
    Workload,
)
from autocompile.store.resuming import resuming

_REFUSED = (
    "plain torch.compile() was refused as wrong; if the difference is only rounding, a higher "
    "--tolerance accepts it and settings like it"
)
_SLOWER, _FAULTS = (
    1.1,
    50,
)  # eager mode where freed memory is given back, page faults of a call
_KEEPS = "MALLOC_TRIM_THRESHOLD_=268435456 MALLOC_MMAP_THRESHOLD_=33554432"
_ROUNDED = re.compile(r"^\['.* is off by .*\(call ")  # of what --tolerance is about


def build_report(
    run: Mapping[str, Any],
    records: Sequence[Record],
    *,
    run_dir: str,
    limits: Limits | None = None,
    interrupted: bool = False,
    wall_s: float = 0.0,
) -> Report:
    """The report without its exports, of what ``run.json`` and the records hold."""
    request, running = run["request"], run.get("running", False)
    phases = {}
    for name in run["phases"]:
        phase = _phase(name, records, run, limits or Limits(), run_dir, interrupted)
        state = state_of(name, records, running) if running or interrupted else ""
        if state:
            phase = dataclasses.replace(
                phase, state=state, verdict="failed", reason=state, best=None
            )
        phases[name] = phase
    return Report(
        target=Target(**known(Target, {**run["target"], "spec": request["target"]})),
        environment=run["environment"],
        environments=run.get("environments", {}),
        run_dir=run_dir,
        interrupted=interrupted,
        running=running,
        **{name: request[name] for name in ("effort", "objective", "seed")},
        tolerance=request.get("tolerance"),
        wall_s=wall_s,
        phases=phases,
        decided_by=kept_in(request, Kept.VERIFY),
    )


def state_of(phase: str, records: Sequence[Record], running: bool) -> str:
    """Why it is too early for a verdict on a phase of a run that has not ended; else empty."""
    mine = [r for r in records if r.phase == phase]
    ended = [r for r in mine if r.outcome is not Outcome.INTERRUPTED]
    if not mine or (running and not ended):
        return "not started"
    if running and all(r.config.is_baseline for r in ended):
        return "no compiled setting has finished"
    return ""


def _phase(
    name: str,
    every_record: Sequence[Record],
    run: Mapping[str, Any],
    limits: Limits,
    run_dir: str,
    interrupted: bool,
) -> PhaseResult:
    mine = [r for r in every_record if r.phase == name]
    exported = [r for r in mine if r.role == EXPORTED]
    records = [r for r in mine if r.role != EXPORTED]
    space = run.get("spaces", {}).get(name, {})
    device = str(run["environment"].get("device", ""))
    every = candidates(records)
    decisions = decide_all(records, limits)
    size = _leading_size(name, decisions, run)
    decision = decisions.get(size)
    allowed = [c for c in every if c.keeps(limits)]
    verdict, reason = _verdict(decision, every, allowed, records, space)
    stopped = [r for r in records if r.outcome is Outcome.INTERRUPTED]
    searched = [r for r in records if r.role == "search"]
    tried = {
        r.config
        for r in searched
        if r.wall_s > 0 and r.outcome is not Outcome.INTERRUPTED
    }
    settings = space.get("configs", len(tried))
    missing = ""
    if verdict == "keep_eager" and (space.get("untried") or stopped):
        works = any(not c.record.config.is_plain_eager for c in allowed)
        if not any(_is_tried(r) and r.batch_size == size for r in records):
            where = "" if size is None else f" at batch size {size}"
            reason = missing = f"{NOT_TRIED}{where}"
        elif interrupted or not works:
            missing = f"{len(tried)} of {settings} settings tried"
    best = decision.best if decision and verdict != "failed" else None
    here = [c for c in every if c.record.batch_size == size]
    rest = [] if missing else space.get("rest", [])
    plain = [
        r for r in searched if r.config == DEFAULT_INDUCTOR and r.batch_size == size
    ]
    if any(
        r.outcome is Outcome.WRONG_OUTPUT and _ROUNDED.search(r.message) for r in plain
    ):
        missing = missing or _REFUSED
    sure = (
        _confidence(decision, missing, rest, run, run_dir)
        if best and decision
        else None
    )
    notes = [*_notes(every, allowed, space, records), *obstacles(records, device)]
    workload = workload_of(name, run["target"])
    kinds, horizon = (
        (best.record.kinds or ()) if best else (),
        run["request"].get("horizon"),
    )
    a_pass = workload.get("calls", 1)
    turns = as_calls_grow(here, limits, horizon / a_pass) if horizon else []
    return PhaseResult(
        verdict=verdict,
        workload=Workload(
            calls=workload["calls"],
            kinds=workload["kinds"],
            percentiles=_percentiles(kinds),
        )
        if workload
        else None,
        horizon=horizon,
        as_calls_grow=tuple(
            FromCalls(number=c.record.number, calls=math.ceil(passes * a_pass))
            for c, passes in turns
        ),
        calls=tuple(kinds),
        role=phase_of(name).role,
        reason=reason,
        confidence=sure,
        explanation=tuple(why(best, verdict, every, device)),
        best=_best(best, here, exported, a_pass) if best else None,
        ties=tuple(c.record.number for c in decision.ties) if best and decision else (),
        by_batch_size=tuple(
            _size_row(s, d) for s, d in decisions.items() if d.rivals or d.is_faster
        ),
        failures=tuple(_failures(records, run_dir)),
        unusable=space.get("unusable", {}),
        dropped=space.get("dropped", {}),
        notes=tuple(n for n in notes if not best or n not in best.record.notes),
        tried=len(tried),
        settings=settings,
        compiled_tried=sum(not c.is_eager for c in tried),
        compiled_settings=space.get("compiled"),
        trials=tuple(_trial(r, run_dir) for r in records),
    )


def _percentiles(kinds: Sequence[CallKind]) -> tuple[Percentile, ...]:
    eager = [(kind.eager_s, kind.calls) for kind in kinds]
    best = [(kind.call_s, kind.calls) for kind in kinds]
    return tuple(
        Percentile(percent=p, eager_s=percentile(eager, p), call_s=percentile(best, p))
        for p in (PERCENTILES.values() if kinds else ())
    )


def _leading_size(
    name: str, decisions: Mapping[int | None, Decision], run: Mapping[str, Any]
) -> int | None:
    """The batch size that the phase is about: the user's own, or the best by the objective."""
    own: int | None = (run["target"].get("own_batch_size") or {}).get(name)
    if own in decisions or not decisions:
        return own
    best = {size: decision.best for size, decision in decisions.items()}
    if run["request"]["objective"] == "latency":
        return min(best, key=lambda n: best[n].latency_s(100))
    return max(best, key=lambda size: best[size].throughput.value)


def _verdict(
    decision: Decision | None,
    every: Sequence[Candidate],
    allowed: Sequence[Candidate],
    records: Sequence[Record],
    space: Mapping[str, Any],
) -> tuple[Literal["faster", "keep_eager", "failed"], str]:
    """``faster``, ``keep_eager`` or ``failed``, and the reason."""
    eagers = [r for r in records if r.config.is_plain_eager]
    if eagers and all(
        r.outcome not in (Outcome.OK, Outcome.INTERRUPTED) for r in eagers
    ):
        return "failed", f"eager mode itself fails: {eagers[0].message}"
    if not decision and space.get("untried") and not any(_is_tried(r) for r in records):
        return "failed", "the run ended before any setting other than eager was tried"
    if decision is None and every:
        return (
            "failed",
            "eager mode was not measured, so there is nothing to compare with",
        )
    if decision is None:
        return "failed", _why_nothing(every, records, space)
    most = f"{100 * max(decision.ceiling, 0.005):.1f}"
    most = "2" if ZONE / 2 < decision.ceiling <= ZONE else most
    nothing_better = f"that was tried is more than {most} % faster (95 %)"
    if decision.is_faster:
        return "faster", f"nothing else {nothing_better}"
    others = [c for c in allowed if not c.record.config.is_baseline]
    if not others and not any(_is_tried(r) for r in records):
        return "keep_eager", NOT_TRIED
    if not others:
        return "keep_eager", _why_nothing(every, records, space)
    return "keep_eager", f"nothing {nothing_better}"


def _is_tried(record: Record) -> bool:
    is_over = record.outcome is not Outcome.INTERRUPTED and record.wall_s > 0
    return is_over and not record.config.is_plain_eager


def _confidence(
    decision: Decision,
    missing: str,
    rest: Sequence[Mapping[str, Any]],
    run: Mapping[str, Any],
    run_dir: str,
) -> Confidence:
    """How sure the decision is; if not quite, what is open and the command that settles it.

    ``rest``: untried settings that may be worth their seconds, the most promising first.
    """
    best, why_not_high = decision.best, ""
    word: Literal["high", "open", "low"] = "high"
    command = resuming(run, run_dir, "--budget", "5m")
    if decision.open:
        setting, above = decision.open[0]
        word = "open"
        name = show.label(setting.record.config)
        why_not_high = f"{name} may be up to {100 * above:.0f} % faster"
    elif rest:
        first = rest[0]
        likely, most = (round(100 * first[name]) for name in ("likely", "most"))
        gain = (
            f"{likely} to {most} % faster" if likely > 0 else f"up to {most} % faster"
        )
        word = "open"
        why_not_high = (
            f"{show.label(first['config'])} was not reached and may be {gain}"
        )
    elif missing:
        word, why_not_high = "low", missing
    elif decision.is_faster and best.sets < SETS[0]:
        word = "low"
        why_not_high = f"confirmed in {best.sets} of {SETS[0]} fresh processes"
    elif decision.doubtful:
        setting, above = decision.doubtful[0]
        word, command, name = "open", "", show.label(setting.record.config)
        beside = "beside it eager mode ran slower than alone"
        why_not_high = f"{name} may be up to {100 * above:.0f} % faster: {beside}"
    return Confidence(
        word=word,
        decided=word == "high",
        open=why_not_high,
        command=command if why_not_high not in ("", _REFUSED) else "",
    )


def _why_nothing(
    every: Sequence[Candidate], records: Sequence[Record], space: Mapping[str, Any]
) -> str:
    if not records:
        return "nothing was measured"
    if any(not c.record.config.is_plain_eager for c in every):
        return "every setting that works exceeds the limits"
    others = [r for r in records if not r.config.is_plain_eager]
    failed = [r for r in others if not r.ok and r.outcome is not Outcome.INTERRUPTED]
    if not failed:
        unusable = "; ".join(f"{k}: {v}" for k, v in space.get("unusable", {}).items())
        return f"no setting other than eager was measured{f' ({unusable})' if unusable else ''}"
    what = "every setting other than eager failed"
    if any(r.ok for r in others):
        what = "every setting that worked in the search failed when it was raced"
        failed = [r for r in failed if r.repeats is not None]
    kinds = Counter(r.outcome.value for r in failed).most_common()
    return f"{what}: {', '.join(f'{number} × {kind}' for kind, number in kinds)}"


def _notes(
    every: Sequence[Candidate],
    allowed: Sequence[Candidate],
    space: Mapping[str, Any],
    records: Sequence[Record],
) -> Iterator[str]:
    stopped = [
        r for r in records if r.role == "search" and r.outcome is Outcome.INTERRUPTED
    ]
    if stopped:
        what = f"{show.many(len(stopped), 'trial')} {'was' if len(stopped) == 1 else 'were'}"
        yield f"{what} stopped before the end: --resume tries again"
    yield from (
        f"{left} is the same as {kept}"
        for left, kept in space.get("merged", {}).items()
    )
    unknown = sum(not c.record.is_known_to_pay for c in every)
    if unknown:
        yield (
            f"{unknown} settings take the weights as constants and are not recommended, since "
            "nobody has said how often they change (--calls-per-update)"
        )
    if outside := len(every) - len(allowed) - unknown:
        yield f"outside the limits: {show.many(outside, 'setting')}"
    # What every trial says is said once.
    if said := [
        set(c.record.notes) for c in every if not c.record.config.is_plain_eager
    ]:
        yield from sorted(set.intersection(*said))


# --- rows ---------------------------------------------------------------------------------------


def _failures(records: Sequence[Record], run_dir: str) -> list[Failures]:
    """Failures grouped by cause; those answered by another trial count with it."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for r in records:
        if r.outcome not in (Outcome.OK, Outcome.INTERRUPTED):
            groups.setdefault(
                (r.config.backend, r.outcome.value, r.message), []
            ).append(r)
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
    return bool(record.detail.get("answered"))


def _log(record: Record, run_dir: str) -> str | None:
    if record.wall_s == 0 or record.duplicate_of is not None:
        return None
    number = record.detail.get(
        "raced_in", record.number
    )  # several share a race's process
    return f"{run_dir}/trials/{number:04d}/log.txt"


def _trial(record: Record, run_dir: str) -> Trial:
    own = known(Trial, vars(record)) | {
        "config": record.config.to_dict(),
        "began": record.began,
        "answered": _is_answered(record),
        "notes": tuple(record.notes),
        "log": _log(record, run_dir),
    }
    if record.ok and (m := record.measurement):
        own |= {
            "speedup": m.speedup,
            "throughput": _throughput(
                m.speedup.scaled(record.samples / m.eager_call_s), record
            ),
            "call_s": m.compiled_call_s,
            "eager_call_s": m.eager_call_s,
            "flags": tuple(m.flags),
        }
    return Trial(**own)


def _throughput(rate: Interval, record: Record) -> Throughput:
    return Throughput(rate.value, rate.low, rate.high, _unit(record))


def _unit(record: Record) -> Unit:
    return phase_of(record.phase).unit


def _size_row(size: int | None, decision: Decision) -> SizeRow:
    raced = [c for c in decision.rivals if c.sets]
    top = decision.best if decision.is_faster else (raced or decision.rivals)[0]
    return SizeRow(
        batch_size=size,
        eager_throughput=top.eager_throughput,
        best_throughput=top.throughput.value,
        speedup=top.reported,
        number=top.record.number,
        confirmed_processes=top.sets,
        faster=decision.is_faster,
        decided=not (decision.open or decision.doubtful)
        and (top.sets > 1 or not decision.is_faster),
    )


def _best(
    best: Candidate, found: Sequence[Candidate], exported: Sequence[Record], calls: int
) -> Best:
    """The best setting, of all ``found`` at its batch size; ``calls`` are those of a pass."""
    record = best.record
    plain = next((c for c in found if c.record.config == DEFAULT_INDUCTOR), best)
    is_eager, is_default = (
        record.config.is_eager,
        plain == best or record.config.is_baseline,
    )
    # Without a share of the compile time, which would count it twice.
    saved = best.eager_call_s - best.call_s + extra_s(record)
    pays = saved > 0 and not is_eager
    own = {
        "config": record.config.to_dict(),
        "throughput": _throughput(best.throughput, record),
        "eager_throughput": Rate(value=best.eager_throughput, unit=_unit(record)),
        "speedup": best.reported,
        "speedup_against_default": None if is_default else compare(best, plain),
        "compile_s": 0.0 if is_eager else record.compile_s,
        "warm_compile_s": 0.0 if is_eager else best.warm_compile_s,
        "break_even_calls": round((record.compile_s or 0.0) / saved * calls)
        if pays
        else None,
        "calls_to_repay_refresh": _calls_to_repay(best, calls),
        "confirmed_processes": best.sets,
        "exported": _exported(best, exported),
        "same_code": best.same_code,
        "slow_sets": best.slow_sets,
        "call_s": best.call_s,
        "notes": (*record.notes, *_giving_back(found)),
    }
    return Best(**known(Best, vars(record)) | own)


def _giving_back(found: Sequence[Candidate]) -> Iterator[str]:
    """What eager mode loses by page faults where a program's memory is not kept, as it is here."""
    costs = (
        c.record.detail.get("given_back")
        for c in found
        if c.record.config.is_plain_eager
    )
    cost = next(filter(None, costs), None) or {"times": 1.0, "faults": 0.0}
    if cost["times"] > _SLOWER and cost["faults"] > _FAULTS:
        yield (
            f"where glibc gives freed memory back, as it may in your program, eager mode takes "
            f"{cost['times']:.1f} times as long ({cost['faults']:.0f} page faults a call); here it "
            f"is kept, and there with {_KEEPS} in the environment"
        )


def _exported(best: Candidate, exported: Sequence[Record]) -> Exported | None:
    record = next(
        (r for r in reversed(exported) if r.repeats == best.record.number), None
    )
    if record is None:
        return None
    if not record.ok or record.measurement is None:
        return Exported(outcome=record.outcome, message=record.message)
    m = record.measurement
    found = over_sets(
        [math.log(with_costs(m.speedup.value, best.record, m.eager_call_s))]
    )
    is_as_fast = ratio(found, best.speedup).high >= 1
    now = whole_call_s(m, best.record)
    then = best.processes or [now]
    pace = ratio(over_sets([-math.log(now)]), over_sets([-math.log(s) for s in then]))
    return Exported(
        outcome=record.outcome,
        message=record.message,
        agrees=is_as_fast or (pace.high >= 1 and found.high >= 1),
        speedup=found,
    )


def _calls_to_repay(best: Candidate, calls: int) -> int | None:
    """How many calls with the same weights it takes until constants have paid."""
    measured = best.record.measurement
    if not best.record.refresh_s or measured is None:
        return None
    saved = measured.eager_call_s - measured.compiled_call_s
    return math.ceil(best.record.refresh_s / saved * calls) if saved > 0 else None
