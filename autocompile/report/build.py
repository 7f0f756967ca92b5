"""From records to the report, as ``report.json`` holds it (schema 1)."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autocompile.estimate.candidates import Candidate, Limits, candidates
from autocompile.estimate.decision import ZONE, Decision, decide
from autocompile.report import text as show
from autocompile.report.advice import on_memory, on_recurrent_layers
from autocompile.report.explain import why, why_not
from autocompile.report.rows import best_row, failures, size_row, trial_row
from autocompile.settings.phases import phase_of
from autocompile.store import runs
from autocompile.store.record import EXPORTED, SCHEMA, Outcome, Record

__all__ = ["build_report"]

_NO_EAGER = "eager mode was not measured, so there is nothing to compare with"
_CONFIRMED = 2  # sets of fresh processes, at least
_UNCONFIRMED = "the best was not timed again in two or more fresh processes"
_SLOWING = "beside every setting that works eager runs slower than alone"
_TARGET_KEYS = (
    "kind",
    "description",
    "parameters",
    "algorithm",
    "build",
    "own_batch_size",
    "calls_per_update",
    "samples_per_update",
    "optimizer",
    "choices",
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
    plan = run["plan"]
    target = {k: run["target"].get(k) for k in _TARGET_KEYS}
    return {
        "schema": SCHEMA,
        "target": {"spec": plan["target"], **target},
        "environment": run["environment"],
        "environments": run.get("environments", {}),
        "run_dir": run_dir,
        "interrupted": interrupted,
        "running": run.get("running", False),
        "effort": plan["effort"],
        "objective": plan["objective"],
        "seed": plan["seed"],
        "tolerance": plan.get("tolerance"),
        "wall_s": wall_s,
        "phases": {
            name: _phase(name, [r for r in records if r.phase == name], run, limits, run_dir)
            for name in run["phases"]
        },
        "exports": {},
    }


def _phase(
    name: str,
    records: list[Record],
    run: Mapping[str, Any],
    limits: Limits | None,
    run_dir: str,
) -> dict[str, Any]:
    limits = limits or Limits()
    exported = [r for r in records if r.role == EXPORTED]
    records = [r for r in records if r.role != EXPORTED]
    space = run.get("spaces", {}).get(name, {})
    device = str(run["environment"].get("device", ""))
    every = candidates(records)
    by_size = _by_size(every)
    decisions = {size: d for size, found in by_size.items() if (d := decide(found, limits))}
    size = _leading_size(name, decisions, run)
    decision = decisions.get(size)
    allowed = [c for c in every if c.keeps(limits)]
    verdict, reason = _verdict(decision, every, allowed, records, space)
    is_short = bool(space.get("untried") or any(r.outcome is Outcome.INTERRUPTED for r in records))
    is_untried = (
        verdict == "keep_eager"
        and is_short
        and not any(_is_tried(r) and r.batch_size == size for r in records)
    )
    if is_untried:
        where = "" if size is None else f" at batch size {size}"
        reason = f"the run ended before any other setting was tried{where}"
    best = decision.best if decision and verdict != "failed" else None
    ties = [c.record.number for c in decision.ties] if best and decision else []
    searched = [r for r in records if r.role == "search"]
    stopped = [r for r in searched if r.outcome is Outcome.INTERRUPTED]
    tried = {r.config for r in searched if r.wall_s > 0 and r.outcome is not Outcome.INTERRUPTED}
    return {
        "verdict": verdict,
        "role": phase_of(name).role,
        "reason": reason,
        "confidence": _confidence(decision, reason * is_untried, run, run_dir) if best else None,
        "explanation": why(best, verdict, every, device),
        "why_not": why_not(best, allowed, records, ties, device),
        "best": best_row(best, by_size[size], records, exported) if best else None,
        "ties": ties,
        "by_batch_size": [size_row(s, d) for s, d in decisions.items() if d.rivals or d.is_faster],
        "failures": failures(records, run_dir),
        "unusable": space.get("unusable", {}),
        "notes": [
            *_notes_of_stopped(len(stopped)),
            *(n for n in _notes(every, allowed, space) if not best or n not in best.record.notes),
        ],
        "tried": len(tried),
        "settings": space.get("configs", len(tried)),
        "trials": [trial_row(r, run_dir) for r in records],
    }


def _by_size(every: Sequence[Candidate]) -> dict[int | None, list[Candidate]]:
    sizes = sorted({c.record.batch_size for c in every}, key=lambda s: s or 0)
    return {size: [c for c in every if c.record.batch_size == size] for size in sizes}


def _leading_size(
    name: str, decisions: Mapping[int | None, Decision], run: Mapping[str, Any]
) -> int | None:
    """The batch size that the phase is about: the user's own, or the best by the objective."""
    own: int | None = (run["target"].get("own_batch_size") or {}).get(name)
    if own in decisions or not decisions:
        return own

    def merit(size: int | None) -> float:
        best = decisions[size].best
        is_latency = run["plan"]["objective"] == "latency"
        return 1 / best.call_s if is_latency else best.throughput.value

    return max(decisions, key=merit)


def _verdict(
    decision: Decision | None,
    every: Sequence[Candidate],
    allowed: Sequence[Candidate],
    records: Sequence[Record],
    space: Mapping[str, Any],
) -> tuple[str, str]:
    """``faster``, ``keep_eager`` or ``failed``, and the reason."""
    if space.get("untried") and not any(_is_tried(r) for r in records):
        return "failed", "the run ended before any setting other than eager was tried"
    if decision is None:
        return "failed", _NO_EAGER if every else _why_nothing(every, records, space)
    if decision.is_faster:
        unsure = decision.best.sets < _CONFIRMED
        return "faster", _UNCONFIRMED if unsure else _nothing_better(decision, "nothing else")
    others = [c for c in allowed if not c.record.config.is_baseline]
    if others and all(c.slows_eager for c in others):
        return "keep_eager", _SLOWING
    if not others:
        reason = _why_nothing(every, records, space)
        return "keep_eager", reason
    return "keep_eager", _nothing_better(decision, "nothing")


def _is_tried(record: Record) -> bool:
    is_over = record.outcome is not Outcome.INTERRUPTED and record.wall_s > 0
    return is_over and not record.config.is_plain_eager


def _nothing_better(decision: Decision, subject: str) -> str:
    """``nothing that was tried is more than 2 % faster (95 %)``."""
    ceiling = decision.ceiling
    figure = "2 %" if ZONE / 2 < ceiling <= ZONE else f"{100 * max(ceiling, 0.005):.1f} %"
    return f"{subject} that was tried is more than {figure} faster (95 %)"


def _confidence(
    decision: Decision | None, open_: str, run: Mapping[str, Any], run_dir: str
) -> dict[str, Any]:
    """Whether the decision is clear; if not, what is open and the command that settles it."""
    if decision is None:
        return {"decided": False, "open": "", "command": ""}
    if decision.open:
        setting, most = decision.open[0]
        open_ = f"{show.label(setting.record.config)} may be up to {100 * most:.0f} % faster"
    elif decision.is_faster and decision.best.sets < _CONFIRMED:
        open_ = _UNCONFIRMED
    command = ["autocompile", "tune", str(run["plan"]["target"]), "--resume", "--budget", "5m"]
    if Path(run_dir).parent != runs.under:  # --resume alone looks there
        command += ["--run-dir", run_dir]
    return {
        "decided": not open_,
        "open": open_,
        "command": shlex.join(command) if open_ else "",
    }


def _why_nothing(
    every: Sequence[Candidate], records: Sequence[Record], space: Mapping[str, Any]
) -> str:
    if not records:
        return "nothing was measured"
    if any(not c.record.config.is_plain_eager for c in every):
        return "every setting that works exceeds the limits"
    failed = [r for r in records if not r.ok and not r.config.is_plain_eager]
    failed = [r for r in failed if r.outcome is not Outcome.INTERRUPTED]
    if not failed:
        unusable = "; ".join(f"{k}: {v}" for k, v in space.get("unusable", {}).items())
        return f"no setting other than eager was measured{f' ({unusable})' if unusable else ''}"
    again = [r for r in failed if r.repeats is not None]
    if any(r.ok and not r.config.is_plain_eager for r in records):
        return (
            f"every setting that worked in the search failed when it was raced: {_counted(again)}"
        )
    return f"every setting other than eager failed: {_counted(failed)}"


def _counted(failed: Sequence[Record]) -> str:
    """How often each outcome came, most often first."""
    kinds = Counter(r.outcome.value for r in failed)
    return ", ".join(f"{number} × {kind}" for kind, number in kinds.most_common())


def _notes_of_stopped(count: int) -> list[str]:
    what = "1 trial was" if count == 1 else f"{count} trials were"
    return [f"{what} stopped before the end: --resume tries again"] if count else []


def _notes(
    every: Sequence[Candidate], allowed: Sequence[Candidate], space: Mapping[str, Any]
) -> list[str]:
    notes = [f"{left} is the same as {kept}" for left, kept in space.get("merged", {}).items()]
    unknown = sum(not c.is_known_to_pay for c in every)
    if unknown:
        notes.append(
            f"{unknown} settings take the weights as constants and are not recommended, since "
            "nobody has said how often they change (--calls-per-update)"
        )
    notes += [
        f"trial {c.record.number}: eager runs slower beside it than alone, so its speed-up of "
        f"{show.speedup(c.speedup)} is not real; it is not recommended"
        for c in allowed
        if c.slows_eager and c.speedup.low > 1
    ]
    if outside := len(every) - len(allowed) - unknown:
        notes.append(f"outside the limits: {show.many(outside, 'setting')}")
    records = [c.record for c in every]
    notes += on_memory(records) + on_recurrent_layers(records)
    # What every trial says is said once.
    said = [set(c.record.notes) for c in every if not c.record.config.is_plain_eager]
    return notes + (sorted(set.intersection(*said)) if said else [])
