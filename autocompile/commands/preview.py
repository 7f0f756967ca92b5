"""What a tune would do, and about what it would cost: the target is run once and traced once."""

from __future__ import annotations

import math
from typing import Any

from autocompile.commands.diagnose import bench, probed, traced_by_dynamo
from autocompile.execute.interpreter import demand_torch
from autocompile.execute.local import default_jobs
from autocompile.space.plan import Plan, budget_of, environments, target_spec
from autocompile.space.space import SearchSpace, Space
from autocompile.space.spaces import predicted, spaces_of

__all__ = ["preview"]


def preview(
    target: str,
    phases: tuple[str, ...] | None,
    space: SearchSpace,
    effort: str,
    device: str | None,
    jobs: int | None,
    timeout_s: float,
    pythons: tuple[str, ...] = (),
    trials: int | None = None,
    budget_s: float | None = None,
) -> dict[str, Any]:
    """The settings of each phase, what was merged or dropped and why, and the predicted time.

    Dynamo traces each phase once, which tells in seconds what every ``fullgraph`` will say.

    Args:
        target, phases, space, effort, device: as for :func:`autocompile.api.tune`.
        jobs: how many trials would run side by side; one for each core if None.
        timeout_s: the longest that the probe may stay in one step.
        pythons, trials, budget_s: as for :func:`autocompile.api.tune`.

    Returns:
        ``target``, ``environment``, and under ``phases`` one row for each phase.

    Raises:
        UsageError, TargetError: as :func:`autocompile.api.tune`.
    """
    plan = Plan(
        target_spec(target),
        phases=phases,
        space=space,
        effort=effort,
        device=device,
        pythons=environments(pythons),
    )
    for _, python in plan.pythons:
        demand_torch(python, timeout_s)
    with bench(plan, timeout_s) as (job_factory, executor):
        names = ("default", *(name for name, _ in plan.pythons))
        every = {name: probed(plan, job_factory, executor, name) for name in names}
        found, spaces = every["default"], spaces_of(plan, every)
        traced = traced_by_dynamo(plan, found.target, job_factory, executor)
    device = found.environment["device"].split(":")[0]
    if budget_s is None:
        budget_s = budget_of(effort)
    budget_s = math.inf if budget_s is None else budget_s
    expected = {n: predicted(one, device, jobs or default_jobs()) for n, one in spaces.items()}
    total_s = sum(seconds for seconds, _ in expected.values())
    rows = {}
    for name, one in spaces.items():
        seconds, processes = expected[name]
        share_s = math.inf if total_s <= budget_s else budget_s * seconds / total_s
        if trials is not None and processes > trials:
            seconds *= trials / processes
        rows[name] = {
            **_row(one, min(seconds, share_s)),
            "processes": processes if trials is None else min(processes, trials),
            "ends_early": seconds > share_s or (trials is not None and processes > trials),
            "dynamo": traced.get(name, {}),
        }
    return {
        "target": {"spec": plan.target, **found.target},
        "environment": found.environment,
        "phases": rows,
    }


def _row(space: Space, seconds: float) -> dict[str, Any]:
    listed = {s: None for s in space.settings}
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
