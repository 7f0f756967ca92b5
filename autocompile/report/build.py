"""From records to the report, as ``report.json`` holds it (schema 1)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autocompile.estimate.candidates import Candidate, Limits, candidates
from autocompile.estimate.decision import SETS, ZONE, Decision, decide_all
from autocompile.report import text as show
from autocompile.report.advice import advice
from autocompile.report.explain import why, why_not
from autocompile.report.rows import best_row, failures, size_row, trial_row
from autocompile.settings.config import DEFAULT_INDUCTOR
from autocompile.settings.phases import phase_of
from autocompile.store import runs
from autocompile.store.record import EXPORTED, SCHEMA, Outcome, Record

__all__ = ["build_report", "state_of"]

_REFUSED = (
    "plain torch.compile() was refused as wrong; if the difference is only rounding, a higher "
    "--tolerance accepts it and settings like it"
)
_ROUNDED = re.compile(r"^\['.* is off by .*\(call ")  # of what --tolerance is about
_TARGET_KEYS = (
    *("kind", "description", "parameters", "algorithm", "own_batch_size"),
    *("calls_per_update", "samples_per_update", "optimizer", "choices"),
)


def build_report(
    run: Mapping[str, Any],
    records: Sequence[Record],
    *,
    run_dir: str,
    limits: Limits | None = None,
    interrupted: bool = False,
    wall_s: float = 0.0,
) -> dict[str, Any]:
    """The report without its exports.

    Args:
        run: what ``run.json`` holds.
        records: of all phases.
        run_dir: as it is shown to the user.
        limits: of settings that may be best.
        interrupted: the run was stopped before its end.
        wall_s: how long the run took, in seconds.
    """
    plan, running = run["plan"], run.get("running", False)
    phases = {}
    for name in run["phases"]:
        phases[name] = phase = _phase(name, records, run, limits or Limits(), run_dir, interrupted)
        phase["state"] = state_of(name, records, running) if running or interrupted else ""
        if phase["state"]:
            phase |= {"verdict": "failed", "reason": phase["state"], "best": None}
    return {
        "schema": SCHEMA,
        "target": {"spec": plan["target"], **{k: run["target"].get(k) for k in _TARGET_KEYS}},
        "environment": run["environment"],
        "environments": run.get("environments", {}),
        "run_dir": run_dir,
        "interrupted": interrupted,
        "running": running,
        **{name: plan[name] for name in ("effort", "objective", "seed")},
        "tolerance": plan.get("tolerance"),
        "wall_s": wall_s,
        "phases": phases,
        "exports": {},
    }


def state_of(phase: str, records: Sequence[Record], running: bool) -> str:
    """Why it is too early for a verdict on a phase of a run that has not ended; else empty.

    ``records``: of trials that have ended, of all phases. ``running``: a tuner is at work.
    """
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
) -> dict[str, Any]:
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
    tried = {r.config for r in searched if r.wall_s > 0 and r.outcome is not Outcome.INTERRUPTED}
    settings = space.get("configs", len(tried))
    missing = ""
    if verdict == "keep_eager" and (space.get("untried") or stopped):
        works = any(not c.record.config.is_plain_eager for c in allowed)
        if not any(_is_tried(r) and r.batch_size == size for r in records):
            where = "" if size is None else f" at batch size {size}"
            reason = missing = f"the run ended before any other setting was tried{where}"
        elif interrupted or not works:
            missing = f"{len(tried)} of {settings} settings tried"
    best = decision.best if decision and verdict != "failed" else None
    ties = [c.record.number for c in decision.ties] if best and decision else []
    here = [c for c in every if c.record.batch_size == size]
    rest = [] if missing else space.get("rest", [])
    plain = [r for r in searched if r.config == DEFAULT_INDUCTOR and r.batch_size == size]
    if any(r.outcome is Outcome.WRONG_OUTPUT and _ROUNDED.search(r.message) for r in plain):
        missing = missing or _REFUSED
    sure = _confidence(decision, missing, rest, run, run_dir) if best and decision else None
    notes = _notes(every, allowed, space, [r for r in stopped if r in searched])
    return {
        "verdict": verdict,
        "role": phase_of(name).role,
        "reason": reason,
        "confidence": sure,
        "explanation": why(best, verdict, every, device),
        "why_not": why_not(best, allowed, records, ties, device),
        "best": best_row(best, here, records, exported) if best else None,
        "ties": ties,
        "by_batch_size": [size_row(s, d) for s, d in decisions.items() if d.rivals or d.is_faster],
        "failures": failures(records, run_dir),
        "unusable": space.get("unusable", {}),
        "dropped": dict(space.get("dropped", {})),
        "notes": [n for n in notes if not best or n not in best.record.notes],
        "tried": len(tried),
        "settings": settings,
        "compiled_tried": sum(not c.is_eager for c in tried),
        "compiled_settings": space.get("compiled"),
        "trials": [trial_row(r, run_dir) for r in records],
    }


def _leading_size(
    name: str, decisions: Mapping[int | None, Decision], run: Mapping[str, Any]
) -> int | None:
    """The batch size that the phase is about: the user's own, or the best by the objective."""
    own: int | None = (run["target"].get("own_batch_size") or {}).get(name)
    if own in decisions or not decisions:
        return own
    best = {size: decision.best for size, decision in decisions.items()}
    if run["plan"]["objective"] == "latency":
        return min(best, key=lambda size: best[size].call_s)
    return max(best, key=lambda size: best[size].throughput.value)


def _verdict(
    decision: Decision | None,
    every: Sequence[Candidate],
    allowed: Sequence[Candidate],
    records: Sequence[Record],
    space: Mapping[str, Any],
) -> tuple[str, str]:
    """``faster``, ``keep_eager`` or ``failed``, and the reason."""
    eagers = [r for r in records if r.config.is_plain_eager]
    if eagers and all(r.outcome not in (Outcome.OK, Outcome.INTERRUPTED) for r in eagers):
        return "failed", f"eager mode itself fails: {eagers[0].message}"
    if not decision and space.get("untried") and not any(_is_tried(r) for r in records):
        return "failed", "the run ended before any setting other than eager was tried"
    if decision is None and every:
        return "failed", "eager mode was not measured, so there is nothing to compare with"
    if decision is None:
        return "failed", _why_nothing(every, records, space)
    most = f"{100 * max(decision.ceiling, 0.005):.1f}"
    most = "2" if ZONE / 2 < decision.ceiling <= ZONE else most
    nothing_better = f"that was tried is more than {most} % faster (95 %)"
    if decision.is_faster:
        return "faster", f"nothing else {nothing_better}"
    others = [c for c in allowed if not c.record.config.is_baseline]
    if not others and not any(_is_tried(r) for r in records):
        return "keep_eager", "the run ended before any other setting was tried"
    if not others:
        return "keep_eager", _why_nothing(every, records, space)
    if all(c.slows_eager for c in others):
        return "keep_eager", "beside every setting that works eager runs slower than alone"
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
) -> dict[str, Any]:
    """How sure the decision is; if not quite, what is open and the command that settles it.

    ``rest``: untried settings that the search expects to be worth their seconds, the most promising
    first.
    """
    best, word, why_not_high = decision.best, "high", ""
    if decision.open:
        setting, most = decision.open[0]
        word = "open"
        why_not_high = f"{show.label(setting.record.config)} may be up to {100 * most:.0f} % faster"
    elif rest:
        word, why_not_high = "open", _not_reached(rest)
    elif missing:
        word, why_not_high = "low", missing
    elif decision.is_faster and best.sets < SETS[0]:
        word = "low"
        why_not_high = f"confirmed in {best.sets} of {SETS[0]} fresh processes"
    command = runs.resuming(run, run_dir, "--budget", "5m")
    return {
        "word": word,
        "decided": word == "high",
        "open": why_not_high,
        "command": command if why_not_high not in ("", _REFUSED) else "",
    }


def _not_reached(rest: Sequence[Mapping[str, Any]]) -> str:
    """``inductor max-autotune was not reached and may be 5 to 20 % faster``."""
    first = rest[0]
    likely, most = (round(100 * first[name]) for name in ("likely", "most"))
    gain = f"{likely} to {most} % faster" if likely > 0 else f"up to {most} % faster"
    return f"{show.label(first['config'])} was not reached and may be {gain}"


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
    said = "every setting other than eager failed"
    if any(r.ok for r in others):
        said = "every setting that worked in the search failed when it was raced"
        failed = [r for r in failed if r.repeats is not None]
    kinds = Counter(r.outcome.value for r in failed).most_common()
    return f"{said}: {', '.join(f'{number} × {kind}' for kind, number in kinds)}"


def _notes(
    every: Sequence[Candidate],
    allowed: Sequence[Candidate],
    space: Mapping[str, Any],
    stopped: Sequence[Record],
) -> Iterator[str]:
    if stopped:
        what = f"{show.many(len(stopped), 'trial')} {'was' if len(stopped) == 1 else 'were'}"
        yield f"{what} stopped before the end: --resume tries again"
    yield from (f"{left} is the same as {kept}" for left, kept in space.get("merged", {}).items())
    unknown = sum(not c.record.is_known_to_pay for c in every)
    if unknown:
        yield (
            f"{unknown} settings take the weights as constants and are not recommended, since "
            "nobody has said how often they change (--calls-per-update)"
        )
    for c in allowed:
        if c.slows_eager and c.speedup.low > 1:
            yield (
                f"trial {c.record.number}: eager runs slower beside it than alone, so its speed-up "
                f"of {show.speedup(c.speedup)} is not real; it is not recommended"
            )
    if outside := len(every) - len(allowed) - unknown:
        yield f"outside the limits: {show.many(outside, 'setting')}"
    yield from advice([c.record for c in every])
    # What every trial says is said once.
    if said := [set(c.record.notes) for c in every if not c.record.config.is_plain_eager]:
        yield from sorted(set.intersection(*said))
