"""``verify --in-algorithm``: what settings change in the user's own RLlib algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autocompile.commands.bench import bench, end_of
from autocompile.errors import TargetError
from autocompile.estimate.intervals import Interval, median_interval, over_sets, speedup
from autocompile.protocol.requests import AlgorithmRequest
from autocompile.protocol.results import AlgorithmResult
from autocompile.settings.tuned_set import TunedSet
from autocompile.space.plan import Plan, target_spec
from autocompile.store.record import Outcome

__all__ = ["compare_in_algorithm", "figures"]

_FEW_ROUNDS = 6  # fewer have no 95 % interval


def compare_in_algorithm(
    target: str, settings: TunedSet, budget_s: float, timeout_s: float
) -> dict[str, Any]:
    """Run the target's algorithm with and without settings, in turns, in a process of its own.

    ``budget_s`` is of the whole comparison, building and compiling included; ``timeout_s`` later a
    step that hangs is ended.
    """
    plan = Plan(target_spec(target))
    with bench(plan, budget_s + timeout_s) as jobs:
        ending = jobs.run(AlgorithmRequest, fresh=True, tuned=settings, budget_s=budget_s)
        log = end_of(jobs.log)
    said = AlgorithmResult.read(ending.payload)
    if ending.outcome is not Outcome.OK:
        what = f"the algorithm of {plan.target} failed in {ending.step.value}: {ending.message}"
        where = [said.where] if said.where else []
        raise said.error or TargetError(what, *where, *log[-6:])
    names = ("rounds", "runners", "warmup_s", "warmup_iterations", "active")
    found = {name: getattr(said, name) for name in names}
    made = figures(said.rounds, said.runners)
    return {"target": plan.target, "figures": made, "notes": _notes(made, said), **found}


def figures(rounds: Sequence[Mapping[str, Any]], runners: int = 1) -> dict[str, Any]:
    """Estimates with 95 % intervals from the rounds of one process, paired by round.

    That of a gain counts too how far fresh processes usually are apart; those of a side do not.

    Returns:
        ``steps_per_s``: env steps by seconds of ``train()``; ``sampled_per_s``: by seconds of
        sampling; ``update_s``: seconds of a gradient update; ``forward_share``: of sampling that is
        the module's forward. Each of ``untouched`` and ``tuned``, and but for the share ``gain``:
        how many times faster the tuned side is.
    """
    found = {}
    for name, above, below, factor, more_is_better in (
        ("steps_per_s", "steps", "train_s", 1, True),
        ("sampled_per_s", "steps", "sample_s", runners, True),
        ("update_s", "update_s", "updates", 1, False),
        ("forward_share", "forward_s", "sample_s", 1, None),
    ):
        both = [
            [factor * one[side][above] / one[side][below] for side in ("untouched", "tuned")]
            for one in rounds
            if all(one[s].get(above) and one[s].get(below) for s in ("untouched", "tuned"))
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
        found[name] = row
    return found


def _gain(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """As uncertain as one process is, or as its own rounds are."""
    inside, outside = speedup(slow, fast), over_sets([0.0])
    return Interval(
        inside.value,
        min(inside.low, inside.value * outside.low),
        max(inside.high, inside.value * outside.high),
    )


def _notes(made: Mapping[str, Any], said: AlgorithmResult) -> list[str]:
    notes = []
    if share := made.get("forward_share"):
        most = 1 / max(1 - share["untouched"]["value"], 1e-3)
        notes.append(f"were the forward free, sampling would be {most:.2f} times as fast")
    if len(said.rounds) < _FEW_ROUNDS:
        notes.append(
            f"{len(said.rounds)} iterations of each are too few for a 95 % interval: the range "
            "of the values stands in its place (a longer --budget helps)"
        )
    for runner in said.active["env_runners"][:1]:
        if runner.get("measured_elsewhere"):
            notes.append(f"measured elsewhere: {'; '.join(runner['measured_elsewhere'])}")
    return notes
