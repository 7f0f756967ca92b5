"""What a tune would do, and about what it would cost: the target is run once and traced once."""

from __future__ import annotations

from typing import Any

from autocompile.commands.bench import Bench, bench
from autocompile.execute.local import default_jobs
from autocompile.protocol.requests import TraceRequest
from autocompile.protocol.results import ProbeResult, TraceResult
from autocompile.space.plan import Plan, asked_for, budget_of, environments, target_spec
from autocompile.space.space import DEFAULT_BATCH_SIZES, SearchSpace, Space, predicted, spaces_of

__all__ = ["preview"]


def preview(
    target: str,
    phases: tuple[str, ...] | None,
    space: SearchSpace,
    effort: str | None,
    device: str | None,
    jobs: int | None,
    timeout_s: float,
    pythons: tuple[str, ...] = (),
    trials: int | None = None,
    budget_s: float | None = None,
) -> dict[str, Any]:
    """The settings of each phase, what was merged or dropped and why, and the predicted time.

    Arguments and errors are those of :func:`autocompile.api.tune`; under ``phases`` is a row for
    each phase.
    """
    asked = asked_for(
        phases=phases, space=space, effort=effort, device=device, pythons=environments(pythons)
    )
    plan = Plan(target_spec(target), **asked)
    with bench(plan, timeout_s) as trying:
        every = trying.probed()
        found, spaces = every["default"], spaces_of(plan, every)
        traced = _traced(plan, found, trying)
    total_s = budget_of(plan.effort) if budget_s is None else budget_s
    kind = found.environment["device"].split(":")[0]
    expected = {n: predicted(one, kind, jobs or default_jobs()) for n, one in spaces.items()}
    needed_s = sum(seconds for seconds, _ in expected.values())
    share = 1.0 if total_s is None else min(1.0, total_s / needed_s)
    rows = {}
    for name, one in spaces.items():
        whole_s, processes = expected[name]
        most = processes if trials is None else min(processes, trials)
        part = min(share, most / processes)
        rows[name] = {
            **_row(one, whole_s * part),
            "processes": most,
            "ends_early": part < 1,
            "dynamo": traced[name],
        }
    return {
        "target": {"spec": plan.target, **found.target},
        "environment": found.environment,
        "phases": rows,
    }


def _traced(plan: Plan, found: ProbeResult, trying: Bench) -> dict[str, dict[str, Any]]:
    """What Dynamo alone makes of each phase, in seconds: what every ``fullgraph`` will say.

    Or ``error``, why it cannot be told.
    """
    phases = tuple(found.target["phases"])
    size = max(plan.space.batch_sizes or DEFAULT_BATCH_SIZES)
    size = found.target.get("fixed_batch_size", size)
    ending = trying.run(TraceRequest, phases=phases, batch_size=size)
    traced = TraceResult.read(ending.payload).traced
    lost = {"error": f"{ending.outcome.value}: {ending.message}"}
    return {phase: traced.get(phase, lost) for phase in phases}


def _row(space: Space, seconds: float) -> dict[str, Any]:
    listed = set(space.settings)
    return {
        "raw": space.raw,
        "predicted_s": round(seconds, 1),
        "settings": [
            {
                "config": s.config.to_dict(),
                "batch_size": s.batch_size,
                "label": s.config.label(),
                "may_equal": [t.config.label() for t in [s.plainer_twin] if t in listed and t],
            }
            for s in space.settings
        ],
        "unusable": {s.config.backend: reason for s, reason in space.unusable.items()},
        "merged": dict(space.merged),
        "dropped": dict(space.dropped),
    }
