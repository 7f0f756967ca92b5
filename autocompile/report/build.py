"""From records to the report, as ``report.json`` holds it (schema 1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from autocompile.calm import Calm, calmness
from autocompile.config import DEFAULT_INDUCTOR
from autocompile.noise import unusual
from autocompile.preference import rank, some_are_seen, tie_reasons, tie_set
from autocompile.ranking import Candidate, Limits, candidates, noise_floor
from autocompile.record import ONE_PROCESS, SCHEMA, UNSOUND, Outcome, Record
from autocompile.report.advice import on_memory, on_recurrent_layers
from autocompile.report.explain import why, why_not
from autocompile.report.rows import failures, number, trial_row, unit
from autocompile.report.sizes import by_batch_size, elsewhere
from autocompile.stats import ratio

__all__ = ["build_report"]

_NO_EAGER = "eager was not measured, so nothing can be compared with it"
_SLOWING = "beside every setting that works eager runs slower than alone"
_ROLES = {
    "forward_exploration": "worker",
    "forward_inference": "worker",
    "forward_train": "learner",
    "optimizer_step": "learner",
    "train_step": "learner",
}


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
        limits: what a setting must keep to be best.
        interrupted: the run was stopped before it was through.
        wall_s: how long the run took, in seconds.
    """
    plan = run["plan"]
    calm = calmness(records)
    # One phase comes after the other.
    begun = [name for name in run["phases"] if any(r.phase == name for r in records)]
    ended = begun[:-1]
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
            name: _phase(
                name,
                [r for r in records if r.phase == name],
                calm,
                plan["objective"],
                limits or Limits(),
                run.get("spaces", {}).get(name, {}),
                run_dir,
                interrupted and name not in ended,
                run.get("usual_noise_floor"),
                str(run["environment"].get("device", "")),
            )
            for name in run["phases"]
        },
        "exports": {},
    }


_TARGET_KEYS = (
    "kind",
    "description",
    "parameters",
    "algorithm",
    "build",
    "own_batch_size",
    "calls_per_update",
    "samples_per_update",
    "blocks",
    "choices",
)


def _phase(
    name: str,
    records: list[Record],
    calm: Mapping[int, Calm],
    objective: str,
    limits: Limits,
    space: Mapping[str, Any],
    run_dir: str,
    interrupted: bool,
    usual_floor: float | None,
    device: str,
) -> dict[str, Any]:
    every = candidates(records, calm)
    allowed = [c for c in every if c.keeps(limits)]
    if early := _too_early(records, space, interrupted):
        best, verdict, reason = None, "failed", early
        ties: list[Candidate] = []
    else:
        best, ties, verdict, reason = _decide(allowed, every, records, calm, objective, interrupted)
    floor = noise_floor(records, best.record.batch_size, calm) if best else 0.0
    rows = by_batch_size(allowed, objective, records, calm)
    notes = _notes(every, allowed, space, interrupted)
    if verdict == "keep_eager":
        hides_unseen = some_are_seen(every)
        unseen = {c.record.number for c in every if hides_unseen and c.is_unseen}
        notes += elsewhere([r for r in rows if r["number"] not in unseen])
    notes += on_memory(records) + on_recurrent_layers(records)
    if said := unusual(floor, usual_floor):
        notes.append(said)
    return {
        "verdict": verdict,
        "role": _ROLES.get(name, ""),
        "reason": reason,
        "noise_floor": floor,
        "usual_noise_floor": usual_floor,
        "explanation": why(best, verdict, every, device),
        "why_not": why_not(best, allowed, records, [c.record.number for c in ties], device),
        "best": _best(best, every) if best else None,
        "ties": [c.record.number for c in ties],
        "tie_reasons": tie_reasons(ties) if verdict == "faster" else {},
        "by_batch_size": rows,
        "failures": failures(records, run_dir),
        "notes": notes,
        "trials": [trial_row(r, run_dir) for r in records],
    }


def _too_early(records: list[Record], space: Mapping[str, Any], interrupted: bool) -> str:
    """Why there is no verdict: it ended before any compiled setting did; empty if one has."""
    tried = (r for r in records if r.outcome is not Outcome.INTERRUPTED)
    if not space.get("left") or any(not r.config.is_baseline for r in tried):
        return ""
    return f"{_why_left(interrupted)} before a compiled setting had ended"


def _why_left(interrupted: bool) -> str:
    return "the run was interrupted" if interrupted else "the budget was spent"


def _decide(
    allowed: list[Candidate],
    every: list[Candidate],
    records: list[Record],
    calm: Mapping[int, Calm],
    objective: str,
    interrupted: bool,
) -> tuple[Candidate | None, list[Candidate], str, str]:
    """The best setting, those that tie with it, the verdict and its reason."""
    order = rank(allowed, objective)
    if not order:
        return None, [], "failed", _why_nothing(every, records)
    # Eager's batch sizes compete too: the leader decides the batch size, eager is its baseline.
    leader = next((c for c in order if not c.slows_eager), order[0])
    size = leader.record.batch_size
    floor = noise_floor(records, size, calm)
    eager = next(
        (c for c in every if c.record.config.is_baseline and c.record.batch_size == size), None
    )
    if eager is None:
        return None, [], "failed", _NO_EAGER
    rivals = [c for c in order if c.record.batch_size == size and not c.record.config.is_baseline]
    # Where others were seen as they are, one that never was proves nothing by being faster.
    if some_are_seen(rivals):
        rivals = [c for c in rivals if not c.is_unseen]
    slowing = [c for c in rivals if c.slows_eager]
    rivals = [c for c in rivals if c not in slowing]
    faster = [c for c in rivals if c.speedup.low > 1 and c.speedup.value > 1 + floor]
    # What no fresh process has confirmed is reported only where nothing was: an interrupted run.
    tested = any(
        r.role == "confirm" and not r.config.is_baseline and r.outcome is not Outcome.INTERRUPTED
        for r in records
    )
    confirmed = [c for c in faster if c.confirmed] if tested else faster
    if interrupted:  # in a round of random order: who leads may not have had its turn
        lead = max((c.speedup.value for c in rivals if c.confirmed), default=0.0)
        confirmed = [c for c in faster if not c.confirmed and c.speedup.low > lead] or confirmed
    if confirmed:
        top = confirmed[0]
        ties = tie_set(top, confirmed)
        return ties[0], ties, "faster", "faster than eager by more than the noise"
    ties = [eager, *(c for c in rivals if c.speedup.high >= 1)]
    if not rivals:
        why_none = _SLOWING if slowing else _why_nothing(every, records)
        return eager, [eager], "keep_eager", why_none
    near = max(rivals, key=lambda c: (c.confirmed > 0, c.speedup.value)).speedup
    where = "" if size is None else f" at batch size {size}"
    reason = (
        f"nothing beats it by more than the noise{where} (best {near.value:.3f}x "
        f"[{near.low:.3f}, {near.high:.3f}], floor ±{floor:.1%})"
    )
    return eager, ties, "keep_eager", reason


def _why_nothing(every: list[Candidate], records: list[Record]) -> str:
    every = [c for c in every if not c.record.config.is_baseline]
    failed = [r for r in records if not r.ok and not r.config.is_baseline]
    if every:
        return "every setting that works is outside the limits that were asked for"
    if not records:
        return "nothing was measured"
    if not failed:
        return "no compiled setting was measured"
    again = [r for r in failed if r.repeats is not None]
    if any(r.ok and not r.config.is_baseline for r in records):
        counted = _counted(again)
        return f"every setting that worked in the search failed when it was repeated: {counted}"
    return f"all {len(failed)} compiled settings failed: {_counted(failed)}"


def _counted(failed: list[Record]) -> str:
    """How often each outcome came, most often first."""
    kinds = Counter(r.outcome.value for r in failed)
    return ", ".join(f"{number} × {kind}" for kind, number in kinds.most_common())


def _best(best: Candidate, every: list[Candidate]) -> dict[str, Any]:
    record = best.record
    plain = next(
        (
            c
            for c in every
            if c.record.config == DEFAULT_INDUCTOR and c.record.batch_size == record.batch_size
        ),
        None,
    )
    is_eager = record.config.is_baseline
    saved = best.eager_call_s - best.call_s
    against = None
    if plain is not None and not is_eager and record.config != DEFAULT_INDUCTOR:
        against = ratio(best.speedup, plain.speedup).to_dict()
    return {
        "number": record.number,
        "config": record.config.to_dict(),
        "batch_size": record.batch_size,
        "throughput": number(best.throughput, unit(record)),
        "eager_throughput": number(best.eager_throughput, unit(record)),
        "speedup": best.speedup.to_dict(),
        "speedup_against_default": against,
        "compile_s": 0.0 if is_eager else record.compile_s,
        "warm_compile_s": 0.0 if is_eager else best.warm_compile_s,
        "peak_memory_bytes": record.peak_memory_bytes,
        "eager_peak_memory_bytes": record.eager_peak_memory_bytes,
        "break_even_calls": (
            round((record.compile_s or 0.0) / saved) if saved > 0 and not is_eager else None
        ),
        "refresh_s": best.refresh_s,
        "calls_per_update": record.calls_per_update,
        "calls_to_repay_refresh": _calls_to_repay(best),
        "confirmed_processes": best.confirmed,
        "flags": sorted({*best.flags, *(() if is_eager or best.confirmed > 1 else (ONE_PROCESS,))}),
        "call_s": best.call_s,
        "weights_live": record.detail.get("weights_live"),
        "notes": list(record.notes),
    }


def _calls_to_repay(best: Candidate) -> int | None:
    """How many calls with the same weights it takes until freezing them has paid."""
    measured = best.record.measurement
    if not best.refresh_s or measured is None:
        return None
    saved = measured.eager_call_s - measured.compiled_call_s
    return math.ceil(best.refresh_s / saved) if saved > 0 else None


def _notes(
    every: list[Candidate], allowed: list[Candidate], space: Mapping[str, Any], interrupted: bool
) -> list[str]:
    notes = [f"{left} is the same as {kept}" for left, kept in space.get("merged", {}).items()]
    if space.get("left"):
        notes.append(f"{space['left']} settings were not tried: {_why_left(interrupted)}")
    unknown = sum(not c.is_known_to_pay for c in every)
    if unknown:
        notes.append(
            f"{unknown} settings take the weights as constants and are not recommended, since "
            "nobody has said how often they change (--calls-per-update)"
        )
    slowing = [c for c in allowed if c.slows_eager and c.speedup.low > 1]
    notes += [
        f"trial {c.record.number}: eager runs slower beside it than alone, so that it only looks "
        f"{c.speedup.value:.2f} times as fast; it is not recommended"
        for c in slowing
    ]
    hidden = [c for c in allowed if c.is_unseen and UNSOUND & set(c.flags) != {"eager_slowed"}]
    if hidden and some_are_seen(allowed):
        names = ", ".join(f"trial {c.record.number}" for c in hidden)
        notes.append(
            f"{names}: something was in the way in all repeats (other processes, heat, a quota, a "
            "slower machine), so that how fast this is remains unknown; tune again while nothing "
            "else runs"
        )
    if outside := len(every) - len(allowed) - unknown:
        notes.append(f"{outside} settings are outside the limits that were asked for")
    # What every trial says is said once.
    said = [set(c.record.notes) for c in every if not c.record.config.is_baseline]
    notes += sorted(set.intersection(*said)) if said else []
    return notes
