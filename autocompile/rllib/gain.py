"""What settings change in the user's own algorithm (``verify --in-algorithm``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from autocompile.commands.bench import bench, end_of
from autocompile.errors import TargetError
from autocompile.estimate.intervals import Interval, median_interval, over_sets, speedup
from autocompile.protocol.requests import AlgorithmRequest, AlgorithmResult
from autocompile.request import Request
from autocompile.settings.tuned import TunedSet
from autocompile.store.record import Outcome

_FEW_ROUNDS = 6  # fewer have no 95 % interval


def compare_in_algorithm(request: Request, settings: TunedSet) -> dict[str, Any]:
    """Run the target's algorithm with and without settings, in turns, in a process of its own.

    The budget is of the whole comparison, building and compiling included; a step that
    hangs is ended a timeout later.
    """
    budget_s = request.budget_s or 0.0
    longest_s = budget_s + request.timeout_s
    with bench(dataclasses.replace(request, timeout_s=longest_s)) as jobs:
        ending = jobs.run(
            AlgorithmRequest, fresh=True, tuned=settings, budget_s=budget_s
        )
        log = end_of(jobs.log)
    result = AlgorithmResult.read(ending.payload)
    if ending.outcome is not Outcome.OK:
        what = f"the algorithm of {request.target} failed in {ending.step.value}: {ending.message}"
        where = [result.where] if result.where else []
        raise result.error or TargetError(what, *where, *log)
    names = ("rounds", "runners", "warmup_s", "warmup_iterations", "active")
    measured = {name: getattr(result, name) for name in names}
    gains = figures(result.rounds, result.runners)
    return {
        "target": request.target,
        "figures": gains,
        "notes": _notes(gains, result),
        **measured,
    }


def figures(rounds: Sequence[Mapping[str, Any]], runners: int = 1) -> dict[str, Any]:
    """Estimates with 95 % intervals from the rounds of one process, paired by round.

    That of a gain counts too how far fresh processes usually are apart; those of a side do not.

    Returns:
        ``steps_per_s`` and ``sampled_per_s``: env steps by seconds of ``train()`` and of sampling;
        ``update_s``; ``forward_share`` of sampling. Each of ``untouched`` and ``tuned``, and but
        for the share their ``gain``.
    """
    estimates = {}
    for name, above, below, factor, more_is_better in (
        ("steps_per_s", "steps", "train_s", 1, True),
        ("sampled_per_s", "steps", "sample_s", runners, True),
        ("update_s", "update_s", "updates", 1, False),
        ("forward_share", "forward_s", "sample_s", 1, None),
    ):
        both = [
            [
                factor * one[side][above] / one[side][below]
                for side in ("untouched", "tuned")
            ]
            for one in rounds
            if all(
                one[s].get(above) and one[s].get(below) for s in ("untouched", "tuned")
            )
        ]
        if not both:
            continue
        plain, tuned = zip(*both, strict=True)
        row = {
            "untouched": median_interval(plain).to_dict(),
            "tuned": median_interval(tuned).to_dict(),
        }
        if more_is_better is not None:
            pair = (tuned, plain) if more_is_better else (plain, tuned)
            row["gain"] = _gain(*pair).to_dict()
        estimates[name] = row
    return estimates


def _gain(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """As uncertain as one process is, or as its own rounds are."""
    inside, outside = speedup(slow, fast), over_sets([0.0])
    return Interval(
        inside.value,
        min(inside.low, inside.value * outside.low),
        max(inside.high, inside.value * outside.high),
    )


def _notes(estimates: Mapping[str, Any], result: AlgorithmResult) -> list[str]:
    notes = []
    if share := estimates.get("forward_share"):
        most = 1 / max(1 - share["untouched"]["value"], 1e-3)
        notes.append(
            f"were the forward free, sampling would be {most:.2f} times as fast"
        )
    if len(result.rounds) < _FEW_ROUNDS:
        notes.append(
            f"{len(result.rounds)} iterations of each are too few for a 95 % interval: the range "
            "of the values stands in its place (a longer --budget helps)"
        )
    for runner in result.active["env_runners"][:1]:
        if runner.get("measured_elsewhere"):
            notes.append(
                f"measured elsewhere: {'; '.join(runner['measured_elsewhere'])}"
            )
    return notes
